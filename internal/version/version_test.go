package version_test

import (
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/sandbox-broker/sandbox-broker/internal/version"
)

func TestString(t *testing.T) {
	defer func(v, c string) { version.Version, version.Commit = v, c }(version.Version, version.Commit)
	assert.NotEmpty(t, version.String(), "a plain build has a version too")
	version.Version, version.Commit = "v1.2.3", "abc"
	assert.Equal(t, "v1.2.3 (abc)", version.String())
}

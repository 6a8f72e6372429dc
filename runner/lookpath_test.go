package runner_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// What a program puts into a directory of the PATH is found from then on, also where
// the name was found elsewhere before.
func TestAnInstalledProgramIsFound(t *testing.T) {
	dirs := []string{filepath.Join(t.TempDir(), "later"), t.TempDir(), t.TempDir()}
	s := startRunner(t, "PATH="+dirs[0]+":"+dirs[1]+":"+dirs[2]+":/usr/bin:/bin")
	c := s.open()
	install := func(dir string) {
		require.NoError(t, os.MkdirAll(dir, 0o755))
		require.NoError(t, os.WriteFile(filepath.Join(dir, "tool"), []byte("#!/bin/sh\necho "+dir+"\n"), 0o755))
	}
	for i := len(dirs) - 1; i >= 0; i-- {
		install(dirs[i])
		for _, again := range []string{"first-", "again-"} {
			r := run(t, c, again+filepath.Base(dirs[i]), wire.Program{Argv: []string{"tool"}}, "")
			require.Equal(t, dirs[i]+"\n", r.stdout, r.stderr)
		}
	}
}

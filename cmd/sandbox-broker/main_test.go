package main

import (
	"bytes"
	"context"
	"flag"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/sandbox-broker/sandbox-broker/internal/version"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/brokertest"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

var update = flag.Bool("update", false, "write the golden files anew")

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// result is what one call of the program did.
type result struct {
	code     int
	out, err string
}

// call runs the program as main does. in may be nil.
func call(t *testing.T, in io.Reader, args ...string) result {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	return callContext(ctx, in, args...)
}

func callContext(ctx context.Context, in io.Reader, args ...string) result {
	var out, err bytes.Buffer
	code := run(ctx, args, streams{in: in, out: &out, err: &err})
	return result{code, out.String(), err.String()}
}

// scriptBroker starts a scripted broker that the environment names, and nothing else of
// the environment counts.
func scriptBroker(t *testing.T, handle func(*brokertest.Stream)) {
	t.Helper()
	t.Setenv(sandboxclient.EnvURL, brokertest.New(t, brokertest.Each(handle)).URL)
	t.Setenv(sandboxclient.EnvTokenFile, "")
	t.Setenv(sandboxclient.EnvCAFile, "")
}

func TestHelp(t *testing.T) {
	for name, args := range map[string][]string{
		"root":    {"--help"},
		"run":     {"run", "--help"},
		"serve":   {"serve", "--help"},
		"acquire": {"acquire", "--help"},
		"exec":    {"exec", "--help"},
		"attach":  {"attach", "--help"},
		"cp":      {"cp", "--help"},
		"release": {"release", "--help"},
		"bench":   {"bench", "--help"},
	} {
		t.Run(name, func(t *testing.T) {
			got := call(t, nil, args...)
			require.Equal(t, 0, got.code, got.err)
			path := filepath.Join("testdata", "help-"+name+".golden")
			if *update {
				require.NoError(t, os.MkdirAll("testdata", 0o755))
				require.NoError(t, os.WriteFile(path, []byte(got.out), 0o644))
			}
			want, err := os.ReadFile(path)
			require.NoError(t, err)
			assert.Equal(t, string(want), got.out, "run go test ./cmd/sandbox-broker -update if this is on purpose")
		})
	}
}

func TestVersion(t *testing.T) {
	assert.Equal(t, result{0, version.String() + "\n", ""}, call(t, nil, "version"))
}

func TestUsageErrors(t *testing.T) {
	scriptBroker(t, func(s *brokertest.Stream) { s.Fail(wire.Errorf(wire.CodeInternal, "nothing should be asked for")) })
	for name, tt := range map[string]struct {
		args []string
		text string
	}{
		"unknown command":  {[]string{"walk"}, `unknown command "walk"`},
		"unknown flag":     {[]string{"run", "--colour", "x"}, "unknown flag: --colour"},
		"no code":          {[]string{"run"}, "there is no code: name a FILE"},
		"no such file":     {[]string{"run", "missing.py"}, "reading the code: open missing.py"},
		"bad timeout":      {[]string{"run", "--timeout", "soon", "-e", "x"}, "invalid argument"},
		"bad variable":     {[]string{"run", "--env", "NOVALUE", "-e", "x"}, `--env "NOVALUE" is not KEY=VALUE`},
		"bad URL":          {[]string{"run", "--server", "broker:1", "-e", "x"}, "must begin with http:// or https://"},
		"no CA file":       {[]string{"run", "--ca-file", "missing.crt", "-e", "x"}, "reading the CA file: open missing.crt"},
		"no token file":    {[]string{"run", "--token-file", "missing", "-e", "x"}, "reading the token: open missing"},
		"token in clear":   {[]string{"run", "--server", "http://192.0.2.1", "--token-file", "f", "-e", "x"}, "a token would travel in the clear"},
		"version's args":   {[]string{"version", "now"}, "unknown command"},
		"acquire's args":   {[]string{"acquire", "now"}, "unknown command"},
		"release nothing":  {[]string{"release"}, "accepts 1 arg(s), received 0"},
		"exec nothing":     {[]string{"exec"}, "there is no lease: name the LEASE"},
		"exec no program":  {[]string{"exec", "l1", "--"}, "there is no program: name one after LEASE"},
		"exec no code":     {[]string{"exec", "-l", "node", "l1", "ls"}, "--language is for the code of -e"},
		"exec bad env":     {[]string{"exec", "--env", "NOVALUE", "l1", "ls"}, `--env "NOVALUE" is not KEY=VALUE`},
		"cp one thing":     {[]string{"cp", "l1:a"}, "name two things, SRC and DST"},
		"cp both remote":   {[]string{"cp", "l1:a", "l2:b"}, "SRC and DST are both in a sandbox"},
		"cp both local":    {[]string{"cp", "./a:b", "-"}, "neither SRC nor DST is in a sandbox"},
		"cp no file":       {[]string{"cp", "missing.txt", "l1:a"}, "open missing.txt: no such file"},
		"cp a directory":   {[]string{"cp", "testdata", "l1:a"}, "testdata is a directory; only files are copied"},
		"cp stdin unnamed": {[]string{"cp", "-", "l1:dir/"}, "standard input has no name"},
		"cp no source":     {[]string{"cp", "l1:", "-"}, "SRC names no file of the sandbox"},
		"cp a slash":       {[]string{"cp", "l1:dir/", "-"}, "SRC names no file of the sandbox"},
		"cp to nowhere":    {[]string{"cp", "l1:a", "missing/a"}, "missing/: no such file"},
		"cp to no dir":     {[]string{"cp", "l1:a", "missing/"}, "missing/ is no directory"},
		"cp without name":  {[]string{"cp", "l1:..", "."}, "SRC has no name that a file here could have"},
		"cp to a device":   {[]string{"cp", "l1:a", "/dev/null"}, "/dev/null is no regular file"},
	} {
		t.Run(name, func(t *testing.T) {
			got := call(t, nil, tt.args...)
			assert.Equal(t, 125, got.code)
			assert.Empty(t, got.out)
			assert.Contains(t, got.err, tt.text)
			assert.Equal(t, 1, strings.Count(got.err, "\n"), "one line: %q", got.err)
			assert.True(t, strings.HasPrefix(got.err, "sandbox-broker: "), got.err)
		})
	}
}

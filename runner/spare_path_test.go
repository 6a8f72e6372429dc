package runner_test

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandbox-broker/sandbox-broker/internal/channel"
)

// Where the workspace is on the path of modules from the start, each script would make the
// spare stale that it is for. So there are none, and the broker hears what to do about it.
func TestAWorkspaceOnThePathHasNoSpares(t *testing.T) {
	needInterpreter(t, "python")
	for name, path := range map[string]func(dir string) string{
		"by its name":       func(dir string) string { return dir },
		"by a link":         func(dir string) string { return filepath.Join(dir, "link") },
		"by an empty entry": func(string) string { return "/nowhere:" },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			require.NoError(t, os.Symlink(dir, filepath.Join(dir, "link")))
			s := startRunnerIn(t, dir, "", plainPath, "PYTHONPATH="+path(dir))
			c := s.openUnbound()
			done, err := c.Prepare(deadline(t), channel.Prepare{Spares: []string{"python"}})
			require.NoError(t, err)
			require.False(t, done.Spares["python"].Ready)
			require.Len(t, done.Spares["python"].Problems, 1)
			require.Contains(t, done.Spares["python"].Problems[0], "PYTHONPATH")
			for i := range 2 {
				require.Equal(t, "2\n", run(t, c, fmt.Sprint("x-", i), python(), "print(1+1)").stdout)
				require.Zero(t, s.spareProcess())
			}
		})
	}
}

// A directory in the workspace is as good as any other, for as long as nothing is put there.
func TestAPathInTheWorkspaceHasSpares(t *testing.T) {
	needInterpreter(t, "python")
	dir := t.TempDir()
	lib := filepath.Join(dir, "lib")
	require.NoError(t, os.Mkdir(lib, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(lib, "beside.py"), []byte("v = 3"), 0o600))
	c := startRunnerIn(t, dir, "", plainPath, "SANDBOX_SPARES=python", "PYTHONPATH="+lib).open()
	used := func() uint64 { return spareStatus(t, c, "python").Used }
	n := 0
	require.Eventually(t, func() bool { // once the change is older than the spare
		waitSpare(t, c, "python")
		n++
		r := run(t, c, fmt.Sprint("x-", n), python(), "import beside\nprint(beside.v)")
		return r.stdout == "3\n" && used() > 0
	}, soon, look)
	require.Empty(t, waitSpare(t, c, "python").Problems)
}

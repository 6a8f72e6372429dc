package processtest_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandbox-broker/sandbox-broker/internal/processtest"
)

func TestEndAllInEndsWhatWorksThere(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "work")
	start := func(in string) *exec.Cmd {
		require.NoError(t, os.MkdirAll(in, 0o700))
		cmd := exec.Command("sh", "-c", "while sleep 0.02; do :; done")
		cmd.Dir = in
		require.NoError(t, cmd.Start())
		return cmd
	}
	there, below, beside := start(dir), start(filepath.Join(dir, "below")), start(dir+"-beside")
	require.NoError(t, os.RemoveAll(filepath.Join(dir, "below")))
	processtest.EndAllIn(dir)
	for _, cmd := range []*exec.Cmd{there, below} {
		require.Error(t, cmd.Wait())
		require.Equal(t, syscall.SIGKILL, cmd.ProcessState.Sys().(syscall.WaitStatus).Signal())
	}
	require.NoError(t, beside.Process.Signal(syscall.Signal(0)))
	processtest.EndAllIn(dir + "-beside")
	require.Error(t, beside.Wait())
}

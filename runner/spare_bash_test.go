package runner_test

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// An exec's ID reaches a spare bash whole, however long it is.
func TestSpareBashKnowsItsExec(t *testing.T) {
	needInterpreter(t, "shell")
	c := startRunner(t, "SANDBOX_SPARES=shell", plainPath).open()
	for i, id := range []string{"x", "-_", strings.Repeat("9", 64)} {
		waitSpare(t, c, "shell")
		r := run(t, c, id, wire.Program{Language: "shell"}, "echo $SANDBOX_EXEC_ID; env | grep ^SANDBOX; declare -p record")
		require.Equal(t, id+"\nSANDBOX_EXEC_ID="+id+"\n", r.stdout)
		require.Contains(t, r.stderr, "record: not found")
		require.EqualValues(t, i+1, spareStatus(t, c, "shell").Used)
	}
}

// The hand-over is one read: in gVisor a byte at a time would be dear.
func TestSpareBashReadsOnce(t *testing.T) {
	needInterpreter(t, "shell")
	strace, err := exec.LookPath("strace")
	if err != nil {
		t.Skip("this machine has no strace")
	}
	s := startRunner(t, "SANDBOX_SPARES=shell", plainPath)
	c := s.open()
	waitSpare(t, c, "shell")
	log := filepath.Join(t.TempDir(), "log")
	trace := exec.Command(strace, "-e", "trace=read", "-o", log, "-p", fmt.Sprint(s.spareProcess()))
	require.NoError(t, trace.Start())
	ended := make(chan struct{})
	go func() {
		_ = trace.Wait()
		close(ended)
	}()
	defer func() {
		_ = trace.Process.Signal(unix.SIGTERM)
		<-ended
	}()
	text := func() string {
		b, _ := os.ReadFile(log)
		return string(b)
	}
	for !strings.Contains(text(), "read(100") {
		select {
		case <-ended:
			t.Skip("this machine lets nobody trace")
		case <-time.After(look):
		}
	}
	require.Equal(t, "hi\n", run(t, c, "x", wire.Program{Language: "shell"}, "echo hi").stdout)
	require.EqualValues(t, 1, spareStatus(t, c, "shell").Used)
	require.Eventually(t, func() bool { return strings.Contains(text(), "exited") }, soon, look)
	require.Equal(t, 1, strings.Count(text(), "read(100"), text())
}

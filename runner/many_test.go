package runner_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// zombies counts a process's children that have ended and were not waited for.
func zombies(t *testing.T, parent int) int {
	t.Helper()
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	require.NoError(t, err)
	n := 0
	for _, path := range stats {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // it has just gone
		}
		var state string
		var ppid int
		if _, err := fmt.Sscan(string(text[bytes.LastIndexByte(text, ')')+1:]), &state, &ppid); err == nil && state == "Z" && ppid == parent {
			n++
		}
	}
	return n
}

// Orphans that end are waited for while the program that left them goes on: else their
// process IDs would run out.
func TestOrphansAreReaped(t *testing.T) {
	s := startRunner(t)
	c := s.open()
	st, err := c.Exec(deadline(t), "orphans", start(sh("for i in $(seq 300); do (true &); done; echo made; sleep 60")), nil)
	require.NoError(t, err)
	defer st.Close()
	for printed := false; !printed; {
		f, err := st.Recv()
		require.NoError(t, err)
		printed = bytes.Contains(f.Payload, []byte("made"))
	}
	require.Eventually(t, func() bool { return zombies(t, s.cmd.Process.Pid) == 0 }, 10*time.Second, 10*time.Millisecond)
}

// A sandbox is as good after a thousand programs as before: it keeps nothing of those
// that are over but their names.
func TestAThousandPrograms(t *testing.T) {
	s := startRunner(t)
	c := s.open()
	descriptors := func() int {
		found, err := os.ReadDir(fmt.Sprintf("/proc/%d/fd", s.cmd.Process.Pid))
		require.NoError(t, err)
		return len(found)
	}
	before := 0
	for i := range 1100 {
		st, err := c.Exec(deadline(t), fmt.Sprintf("x%d", i), start(sh("exit 3")), nil)
		require.NoError(t, err)
		r := collect(t, st)
		for err == nil { // until the runner has read that the ending came
			_, err = st.Recv()
		}
		st.Close()
		require.Equal(t, 3, r.ending.ExitCode, "program %d", i)
		if i == 20 {
			before = descriptors()
		}
	}
	st, err := c.Status(deadline(t))
	require.NoError(t, err)
	require.Zero(t, st.Execs)
	require.Less(t, descriptors(), before+10)
	require.Zero(t, zombies(t, s.cmd.Process.Pid))
}

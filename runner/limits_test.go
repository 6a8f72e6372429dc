package runner

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestMemoryIsReadFromTheKernelsFiles(t *testing.T) {
	t.Parallel()
	meminfo := "MemTotal:  100 kB\nActive:  9060 kB\nActive(anon):       4052 kB\nInactive(anon):  0 kB\n"
	require.EqualValues(t, 4052<<10, kibibytes([]byte(meminfo), "Active(anon):", -1))
	rollup := "00400000-7ffc [rollup]\nRss:   9000 kB\nPss:   3000 kB\nPss_Dirty:  10 kB\n"
	require.EqualValues(t, 3000<<10, kibibytes([]byte(rollup), "\nPss:", -1))
	require.EqualValues(t, -1, kibibytes([]byte("nothing"), "\nPss:", -1))
	require.EqualValues(t, -1, kibibytes([]byte("\nPss:"), "\nPss:", -1))
	require.EqualValues(t, -1, kibibytes([]byte("\nPss: many kB"), "\nPss:", -1))
}

func TestParseStat(t *testing.T) {
	t.Parallel()
	line := "42 (a ) b) S 7 42 41 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 3 0 100 12345678 250 1844 1 1"
	p, ok := parseStat(42, []byte(line))
	require.True(t, ok)
	require.Equal(t, process{
		pid: 42, ppid: 7, sid: 41, threads: 3, rss: 250 * int64(os.Getpagesize()),
		user: 50 * time.Millisecond, system: 60 * time.Millisecond, // 5 and 6 ticks of 10 ms
	}, p)
	zombie, ok := parseStat(42, []byte("42 (x) Z 7 42 41 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 100 0 0"))
	require.True(t, ok)
	require.True(t, zombie.dead)
	for _, bad := range []string{"", "42 x S 7", "42 (x) S 7 42", "42 (x) S a 42 41 0 -1 0 1 2 3 4 5 6 7 8 20 0 1 0 100 0 0"} {
		_, ok := parseStat(42, []byte(bad))
		require.False(t, ok, bad)
	}
}

// Only what descends from the runner is a program of the sandbox: other processes
// of the machine are neither counted nor killed.
func TestProgramsDescendFromTheRunner(t *testing.T) {
	t.Parallel()
	f := family{self: 10, procs: map[int]process{
		1: {pid: 1}, 10: {pid: 10, ppid: 1}, 11: {pid: 11, ppid: 10}, 12: {pid: 12, ppid: 11},
		13: {pid: 13, ppid: 10, dead: true}, 20: {pid: 20, ppid: 1}, 21: {pid: 21, ppid: 20}, 30: {pid: 30, ppid: 0},
		40: {pid: 40, ppid: 41}, 41: {pid: 41, ppid: 40}, // a snapshot can be of two moments
	}}
	var pids []int
	for p := range f.programs() {
		pids = append(pids, p.pid)
	}
	require.ElementsMatch(t, []int{11, 12}, pids)
}

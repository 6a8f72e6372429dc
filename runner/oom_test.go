package runner

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestTheKernelsKillsAreCounted(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		membership string
		want       []string
	}{
		"version 1": {"7:cpu,cpuacct:/a\n4:memory:/pods/x\n1:name=systemd:/\n", []string{"/sys/fs/cgroup/memory/pods/x/memory.oom_control", "/sys/fs/cgroup/memory/memory.oom_control"}},
		"version 2": {"0::/pods/x\n", []string{"/sys/fs/cgroup/pods/x/memory.events", "/sys/fs/cgroup/memory.events"}},
		"both": {"0::/u\n4:memory:/m\n", []string{
			"/sys/fs/cgroup/memory/m/memory.oom_control", "/sys/fs/cgroup/memory/memory.oom_control",
			"/sys/fs/cgroup/u/memory.events", "/sys/fs/cgroup/memory.events",
		}},
		"none": {"garbage\n", nil},
	} {
		require.Equal(t, tc.want, killCounters(tc.membership), name)
	}
	require.EqualValues(t, 3, killCount([]byte("oom_kill_disable 0\nunder_oom 0\noom_kill 3\n")))
	require.EqualValues(t, 2, killCount([]byte("low 0\nhigh 0\nmax 12\noom 4\noom_kill 2\noom_group_kill 0\n")))
	require.Zero(t, killCount([]byte("oom_kill many\n")))
	require.Zero(t, killCount(nil))
}

// The runner acts before the kernel does, and leaves programs most of the memory.
func TestTheReserveLiesBelowTheKernelsLimit(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	for limit, want := range map[int64]int64{0: 0, 16 * mib: 8 * mib, 256 * mib: 240 * mib, 320 * mib: 304 * mib, 1024 * mib: 1024*mib - 1024*mib/20} {
		require.Equal(t, want, belowKernel(limit, false), "%d", limit)
	}
	require.EqualValues(t, 208*mib, belowKernel(256*mib, true), "gVisor's own memory counts too")
	require.EqualValues(t, 32*mib, belowKernel(64*mib, true), "half is the programs' in any case")
}

func TestLimitsComeFromTheEnvironment(t *testing.T) {
	t.Setenv("SANDBOX_MEMORY_LIMIT", "268435456")
	require.EqualValues(t, belowKernel(256<<20, isGVisor()), LimitsFromEnviron().Memory, "the kernel's, less the reserve")
	t.Setenv("SANDBOX_PROGRAM_MEMORY_LIMIT", "100000000")
	require.EqualValues(t, 100000000, LimitsFromEnviron().Memory, "as it is: whoever said it knows")
	t.Setenv("SANDBOX_PROCESS_LIMIT", "9")
	require.Equal(t, 9, LimitsFromEnviron().Processes)
	t.Setenv("SANDBOX_MEMORY_LIMIT", "much")
	t.Setenv("SANDBOX_PROGRAM_MEMORY_LIMIT", "")
	require.Zero(t, LimitsFromEnviron().Memory)
}

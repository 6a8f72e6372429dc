//go:build linux

package local_test

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/containerd/cgroups/v3"
	"github.com/containerd/cgroups/v3/cgroup1"
	"github.com/containerd/cgroups/v3/cgroup2"
	"github.com/opencontainers/runtime-spec/specs-go"
	"github.com/stretchr/testify/require"

	"github.com/sandbox-broker/sandbox-broker/broker/local"
	"github.com/sandbox-broker/sandbox-broker/internal/hostile"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// cue is a program's output, and a line of input that comes after its first line.
type cue struct {
	strings.Builder
	once sync.Once
	in   *io.PipeWriter
}

// Write implements io.Writer.
func (c *cue) Write(b []byte) (int, error) {
	if bytes.ContainsRune(b, '\n') {
		c.once.Do(func() {
			go func() { // the program may not read it
				_, _ = io.WriteString(c.in, "\n")
				_ = c.in.Close()
			}()
		})
	}
	return c.Builder.Write(b)
}

// hog runs a program that takes too much memory and returns its ending and output.
func hog(t *testing.T, l *sandboxclient.Lease, language, source string) (sandboxclient.Ending, string) {
	t.Helper()
	stdin, in := io.Pipe()
	defer func() { _ = stdin.Close() }()
	out := &cue{in: in}
	cmd := l.Script(language, source)
	cmd.Stdin, cmd.Stdout, cmd.Timeout = stdin, out, 50*time.Second
	var exit *sandboxclient.ExitError
	require.ErrorAs(t, cmd.Run(within(t, time.Minute)), &exit)
	t.Logf("%s: %s", exit.Ending.Reason, exit.Ending.Message)
	return exit.Ending, out.String()
}

func acquire(t *testing.T, s *site) *sandboxclient.Lease {
	t.Helper()
	l, err := s.Acquire(within(t, time.Minute), "test")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, l.Release(within(t, time.Minute))) })
	return l
}

// The three ways in which too much memory is noticed all read oom: the runner's look,
// which ends the program alone; the kernel's, which ends all of gVisor; and the kernel's
// where it ends one process.
func TestTooMuchMemoryIsToldAsSuch(t *testing.T) {
	pool := local.Pool{Name: "test", Warm: 1, Limits: local.Limits{Memory: 128 << 20}}
	t.Run("the runner looks", func(t *testing.T) {
		l := acquire(t, newSite(t, options(t, local.RuntimeRunsc, pool)))
		for range 2 { // the lease lives on
			n, out := hog(t, l, "python", hostile.GrowsSlowly)
			require.Equal(t, wire.ReasonOOM, n.Reason)
			require.Contains(t, n.Message, "the limit is 128 MiB")
			require.True(t, n.Complete)
			require.Equal(t, "up\n", out)
		}
	})
	t.Run("faster than anybody looks", func(t *testing.T) {
		l := acquire(t, newSite(t, options(t, local.RuntimeRunsc, pool)))
		n, out := hog(t, l, "python", hostile.GrowsAtOnce)
		require.Equal(t, wire.ReasonOOM, n.Reason, "whoever saw it first")
		require.Equal(t, "up\n", out)
	})
	t.Run("the kernel ends the sandbox", func(t *testing.T) {
		l := acquire(t, newSite(t, options(t, local.RuntimeRunsc, pool)))
		n, out := hog(t, l, "python", hostile.GrowsUnseen)
		require.Equal(t, wire.ReasonOOM, n.Reason)
		require.False(t, n.Complete)
		require.EqualValues(t, 3, n.StdoutBytes)
		require.Equal(t, "up\n", out)
		require.ErrorIs(t, l.Script("shell", "true").Run(within(t, time.Minute)), sandboxclient.ErrLeaseExpired)
	})
	t.Run("the kernel ends the program", func(t *testing.T) {
		group := newMemoryGroup(t, 64<<20)
		l := acquire(t, newSite(t, options(t, local.RuntimeProcess, local.Pool{Name: "test", Warm: 1})))
		// The runner, too, is in the group, as in a container.
		n, out := hog(t, l, "shell", fmt.Sprintf(`
for p in $PPID $$; do echo $p >%s/cgroup.procs || exit 9; done
printf %%200000s up
exec python3 -c 'kept = []
while True: kept.append(b"m" * (16 << 20))'`, group))
		require.Equal(t, wire.ReasonOOM, n.Reason)
		require.Contains(t, n.Message, "the kernel")
		require.True(t, n.Complete)
		require.Len(t, out, 200_000)
		require.NoError(t, l.Script("shell", "true").Run(within(t, time.Minute)), "the lease lives on")
		n, _ = hog(t, l, "shell", "kill -KILL $$")
		require.Equal(t, wire.ReasonSignaled, n.Reason, "not every SIGKILL is for memory")
	})
}

// newMemoryGroup makes a control group with a limit on memory, and returns its folder.
func newMemoryGroup(t *testing.T, limit int64) string {
	t.Helper()
	if os.Geteuid() != 0 || cgroups.Mode() == cgroups.Unavailable {
		t.Skip("needs root and control groups")
	}
	name := "/sandbox-broker-test-" + filepath.Base(t.TempDir()) + fmt.Sprint(os.Getpid())
	res := &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: &limit}}
	folder, remove := "", func() error { return nil }
	if cgroups.Mode() == cgroups.Unified {
		m, err := cgroup2.NewManager("/sys/fs/cgroup", name, cgroup2.ToResources(res))
		require.NoError(t, err)
		folder, remove = "/sys/fs/cgroup"+name, m.Delete
	} else {
		g, err := cgroup1.New(cgroup1.StaticPath(name), res, cgroup1.WithHierarchy(memoryAlone))
		require.NoError(t, err)
		folder, remove = "/sys/fs/cgroup/memory"+name, g.Delete
	}
	t.Cleanup(func() { // its processes have ended with their sandbox
		require.Eventually(t, func() bool {
			err := remove()
			return err == nil || errors.Is(err, cgroup1.ErrCgroupDeleted) || errors.Is(err, os.ErrNotExist)
		}, 10*time.Second, 10*time.Millisecond)
	})
	return folder
}

// memoryAlone is version 1's controllers without all but memory.
func memoryAlone() ([]cgroup1.Subsystem, error) {
	all, err := cgroup1.Default()
	var out []cgroup1.Subsystem
	for _, s := range all {
		if s.Name() == cgroup1.Memory {
			out = append(out, s)
		}
	}
	return out, err
}

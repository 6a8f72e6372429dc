package proc

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// sleeper is set for the test binary when a test starts it as a process to keep.
const sleeper = "PROC_TEST_SLEEP"

func TestMain(m *testing.M) {
	if os.Getenv(sleeper) != "" {
		time.Sleep(time.Minute)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

type group struct{ pids []int }

func (g *group) Add(pid int) error { g.pids = append(g.pids, pid); return nil }

func newKeeper(t *testing.T) (Keeper, *group) {
	t.Helper()
	g := &group{}
	dir := t.TempDir()
	k := Keeper{Dir: dir, Logs: dir, Group: g}
	t.Cleanup(func() { require.NoError(t, k.Stop(context.Background(), "sleeper", time.Second)) })
	return k, g
}

func sleep(t *testing.T, args ...string) Command {
	t.Helper()
	self, err := os.Executable()
	require.NoError(t, err)
	return Command{Name: "sleeper", Args: append([]string{self}, args...), Env: []string{sleeper + "=1"}}
}

func TestParseStat(t *testing.T) {
	const rest = " 1 2 2 0 -1 4194560 1 0 0 0 0 0 0 0 20 0 1 0 777 1 1 1"
	for name, c := range map[string]struct {
		line string
		want stat
		ok   bool
	}{
		"plain":              {"12 (etcd) S" + rest, stat{startTicks: 777}, true},
		"zombie":             {"12 (etcd) Z" + rest, stat{startTicks: 777, zombie: true}, true},
		"name with brackets": {"12 (a) Z (b) S" + rest, stat{startTicks: 777}, true},
		"no name":            {"12 etcd S" + rest, stat{}, false},
		"cut off":            {"12 (etcd) S 1 2", stat{}, false},
	} {
		t.Run(name, func(t *testing.T) {
			got, err := parseStat([]byte(c.line))
			require.Equal(t, c.ok, err == nil, "error: %v", err)
			require.Equal(t, c.want, got)
		})
	}
}

func TestEnsureStartsOnceAndStopEnds(t *testing.T) {
	k, g := newKeeper(t)
	ctx := context.Background()

	started, err := k.Ensure(ctx, sleep(t), time.Second)
	require.NoError(t, err)
	require.True(t, started)
	first, running, err := k.Lookup("sleeper")
	require.NoError(t, err)
	require.True(t, running)
	require.Equal(t, []int{first.PID}, g.pids)

	started, err = k.Ensure(ctx, sleep(t), time.Second)
	require.NoError(t, err)
	require.False(t, started, "it runs already")

	require.NoError(t, k.Stop(ctx, "sleeper", time.Second))
	require.False(t, first.Same())
	require.NoFileExists(t, recordPath(k.Dir, "sleeper"))
	require.NoError(t, k.Stop(ctx, "sleeper", time.Second), "stopping what does not run")
}

// What ends by itself is started again, and not when it was stopped.
func TestAgain(t *testing.T) {
	k, _ := newKeeper(t)
	starts := filepath.Join(t.TempDir(), "starts")
	c := Command{Name: "sleeper", Args: []string{"/bin/sh", "-c", `echo $$ >>"$0"; test "$(wc -l <"$0")" -lt 2 || exec sleep 60`, starts}, Again: true}
	_, err := k.Ensure(t.Context(), c, time.Second)
	require.NoError(t, err)
	var pids []string
	require.Eventually(t, func() bool {
		text, _ := os.ReadFile(starts)
		pids = strings.Fields(string(text))
		return len(pids) == 2
	}, 10*time.Second, 10*time.Millisecond)
	started, err := k.Ensure(t.Context(), c, time.Second)
	require.NoError(t, err)
	require.False(t, started, "it runs")

	require.NoError(t, k.Stop(t.Context(), "sleeper", 10*time.Second))
	require.NoDirExists(t, "/proc/"+pids[1], "the program ends with it")
}

func TestEnsureRestartsWhatWasStartedDifferently(t *testing.T) {
	k, _ := newKeeper(t)
	ctx := context.Background()
	_, err := k.Ensure(ctx, sleep(t), time.Second)
	require.NoError(t, err)
	first, _, err := k.Lookup("sleeper")
	require.NoError(t, err)

	changed := sleep(t)
	changed.Inputs = [][]byte{[]byte("new configuration")}
	started, err := k.Ensure(ctx, changed, time.Second)
	require.NoError(t, err)
	require.True(t, started)
	require.False(t, first.Same(), "the first is gone")
}

func TestEnsureStartsAgainAfterAKill(t *testing.T) {
	k, _ := newKeeper(t)
	ctx := context.Background()
	_, err := k.Ensure(ctx, sleep(t), time.Second)
	require.NoError(t, err)
	first, _, err := k.Lookup("sleeper")
	require.NoError(t, err)
	p, err := os.FindProcess(first.PID)
	require.NoError(t, err)
	require.NoError(t, p.Kill())
	require.Eventually(t, func() bool { return !first.Same() }, 5*time.Second, 5*time.Millisecond)

	started, err := k.Ensure(ctx, sleep(t), time.Second)
	require.NoError(t, err)
	require.True(t, started)
}

func TestAProcessInheritsNothing(t *testing.T) {
	k, _ := newKeeper(t)
	held, err := os.Create(filepath.Join(t.TempDir(), "held"))
	require.NoError(t, err)
	defer held.Close()
	// As if this program had inherited it.
	_, _, errno := syscall.Syscall(syscall.SYS_FCNTL, held.Fd(), syscall.F_SETFD, 0)
	require.Zero(t, errno)
	_, err = k.Ensure(context.Background(), sleep(t), time.Second)
	require.NoError(t, err)
	r, _, err := k.Lookup("sleeper")
	require.NoError(t, err)
	fds, err := filepath.Glob(fmt.Sprintf("/proc/%d/fd/*", r.PID))
	require.NoError(t, err)
	require.NotEmpty(t, fds)
	for _, fd := range fds {
		target, _ := os.Readlink(fd) // it may be closed by now
		require.NotEqual(t, held.Name(), target)
	}
}

func TestRestartStartsTheSameAgain(t *testing.T) {
	k, g := newKeeper(t)
	ctx := context.Background()
	_, err := k.Restart(ctx, "sleeper", nil)
	require.ErrorContains(t, err, "does not run")
	command := sleep(t, "an argument", "")
	_, err = k.Ensure(ctx, command, time.Second)
	require.NoError(t, err)
	first, _, err := k.Lookup("sleeper")
	require.NoError(t, err)

	revive, err := k.Restart(ctx, "sleeper", func() error {
		require.False(t, first.Same(), "it is not there meanwhile")
		return nil
	})
	require.NoError(t, err)
	require.False(t, first.Same(), "the first is gone")
	second, running, err := k.Lookup("sleeper")
	require.NoError(t, err)
	require.True(t, running)
	require.Equal(t, []int{first.PID, second.PID}, g.pids)
	again, err := commandOf(second)
	require.NoError(t, err)
	require.Equal(t, command.Args, again.Args)
	require.Equal(t, command.Env, again.Env)
	started, err := k.Ensure(ctx, command, time.Second)
	require.NoError(t, err)
	require.False(t, started, "what runs is what is wanted")

	require.NoError(t, revive())
	require.True(t, second.Same(), "what runs needs no reviving")
	require.NoError(t, kill(ctx, second))
	require.NoError(t, revive())
	_, running, err = k.Lookup("sleeper")
	require.NoError(t, err)
	require.True(t, running)
}

// A process that got a dead one's ID is a stranger: it must not be signalled.
func TestStopLeavesARecycledProcessIDAlone(t *testing.T) {
	k, _ := newKeeper(t)
	self, err := os.Executable()
	require.NoError(t, err)
	stranger := exec.Command(self)
	stranger.Env = []string{sleeper + "=1"}
	require.NoError(t, stranger.Start())
	t.Cleanup(func() { _ = stranger.Process.Kill(); _ = stranger.Wait() })

	now, err := readStat(stranger.Process.Pid)
	require.NoError(t, err)
	boot, err := BootID()
	require.NoError(t, err)
	mine := Record{Name: "sleeper", PID: stranger.Process.Pid, StartTicks: now.startTicks, BootID: boot}
	for name, change := range map[string]func(*Record){
		"started at another time": func(r *Record) { r.StartTicks-- },
		"in another boot":         func(r *Record) { r.BootID = "another" },
	} {
		t.Run(name, func(t *testing.T) {
			r := mine
			change(&r)
			require.False(t, r.Same())
			require.NoError(t, save(k.Dir, r))
			require.NoError(t, k.Stop(context.Background(), "sleeper", time.Second))
			require.True(t, mine.Same(), "the stranger lives on")
		})
	}
}

func TestHalfWrittenRecordReadsAsNone(t *testing.T) {
	for name, text := range map[string]string{
		"empty": "", "cut off": `{"name":"sleeper","pid":4`, "no process": `{"name":"sleeper"}`, "init": `{"pid":1}`,
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			require.NoError(t, os.WriteFile(recordPath(dir, "sleeper"), []byte(text), 0o600))
			_, known, err := load(dir, "sleeper")
			require.NoError(t, err)
			require.False(t, known)
		})
	}
}

func TestSpecFollowsALinkedProgram(t *testing.T) {
	dir := t.TempDir()
	link := filepath.Join(dir, "program")
	digests := map[string]bool{}
	for _, target := range []string{"v1", "v2"} {
		path := filepath.Join(dir, target)
		require.NoError(t, os.WriteFile(path, nil, 0o755))
		_ = os.Remove(link)
		require.NoError(t, os.Symlink(path, link))
		d, err := Command{Name: "x", Args: []string{link}}.spec()
		require.NoError(t, err)
		digests[d] = true
	}
	require.Len(t, digests, 2)
}

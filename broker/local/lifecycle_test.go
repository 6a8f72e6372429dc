//go:build linux

package local_test

import (
	"bufio"
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

	"github.com/sandbox-broker/sandbox-broker/broker"
	"github.com/sandbox-broker/sandbox-broker/broker/local"
)

// The test binary is also a broker that can be killed, see TestMain.
const (
	envBroker  = "LOCAL_TEST_BROKER"   // the runtime
	envState   = "LOCAL_TEST_STATE"    // its state folder
	envRunner  = "LOCAL_TEST_RUNNER"   // the runner
	envRunsc   = "LOCAL_TEST_RUNSC"    // runsc
	someSignal = syscall.SIGKILL       // what ends it
	brokerLife = 2 * time.Minute       // bounds it when nobody does
	bothTaken  = "sandboxes are there" // what it says when there is something to leave
)

// beBroker takes a sandbox, keeps another one warm and waits to be killed.
func beBroker() {
	ctx, cancel := context.WithTimeout(context.Background(), brokerLife)
	defer cancel()
	p, err := local.New(ctx, local.Options{
		Runtime: local.RuntimeName(os.Getenv(envBroker)), StateDir: os.Getenv(envState),
		Runner: os.Getenv(envRunner), Runsc: os.Getenv(envRunsc), Pools: []local.Pool{{Name: "test", Warm: 1}},
	})
	if err == nil {
		_, err = p.Take(ctx, broker.TakeRequest{WarmPool: "test", Until: time.Now().Add(brokerLife)})
	}
	for err == nil && p.Warm("test") == 0 && ctx.Err() == nil {
		time.Sleep(time.Millisecond)
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	fmt.Println(bothTaken)
	<-ctx.Done()
}

func TestKilledBrokerLeavesNothing(t *testing.T) {
	for _, rt := range []local.RuntimeName{local.RuntimeProcess, local.RuntimeRunsc} {
		t.Run(string(rt), func(t *testing.T) {
			o := options(t, rt)
			cmd := exec.Command(os.Args[0])
			cmd.Env = append(os.Environ(), envBroker+"="+string(rt), envState+"="+o.StateDir, envRunner+"="+o.Runner, envRunsc+"="+o.Runsc)
			out, err := cmd.StdoutPipe()
			require.NoError(t, err)
			require.NoError(t, cmd.Start())
			line, _ := bufio.NewReader(out).ReadString('\n')
			require.Equal(t, bothTaken+"\n", line)
			left, err := filepath.Glob(filepath.Join(o.StateDir, "sandboxes", "*"))
			require.NoError(t, err)
			require.NotEmpty(t, left)
			require.NoError(t, cmd.Process.Signal(someSignal))
			_ = cmd.Wait()

			require.Eventually(t, func() bool { return len(processesWith(o.StateDir)) == 0 }, 20*time.Second, 10*time.Millisecond,
				"its sandboxes die with it")
			p := open(t, o) // sweeps; that Close leaves nothing is checked by open
			found, err := p.List(t.Context())
			require.NoError(t, err)
			require.Empty(t, found)
			for _, dir := range left {
				require.NoDirExists(t, dir)
			}
		})
	}
}

// processesWith lists the processes that name a text in their command line or
// environment, but this one.
func processesWith(text string) []string {
	var found []string
	entries, _ := os.ReadDir("/proc")
	for _, e := range entries {
		if e.Name() == fmt.Sprint(os.Getpid()) || strings.Trim(e.Name(), "0123456789") != "" {
			continue
		}
		for _, f := range []string{"cmdline", "environ"} {
			b, _ := os.ReadFile(filepath.Join("/proc", e.Name(), f))
			if strings.Contains(string(b), text) {
				found = append(found, e.Name())
				break
			}
		}
	}
	return found
}

// children lists the processes that this one has started.
func children(t *testing.T) []int {
	t.Helper()
	var pids []int
	stats, err := filepath.Glob("/proc/[0-9]*/stat")
	require.NoError(t, err)
	for _, path := range stats {
		text, _ := os.ReadFile(path)
		// proc(5): pid (comm) state ppid; a name may hold anything.
		var state string
		var ppid int
		_, err := fmt.Sscan(string(text[strings.LastIndexByte(string(text), ')')+1:]), &state, &ppid)
		if err == nil && ppid == os.Getpid() && state != "Z" {
			var pid int
			_, err = fmt.Sscan(string(text), &pid)
			require.NoError(t, err)
			pids = append(pids, pid)
		}
	}
	return pids
}

func TestOneBrokerForAStateFolder(t *testing.T) {
	o := options(t, local.RuntimeProcess)
	open(t, o)
	_, err := local.New(t.Context(), o)
	require.ErrorContains(t, err, "another broker uses the state folder "+o.StateDir)
	require.ErrorContains(t, err, "another instance or provider.local.stateDir")
}

func TestStateFolderOfOthersIsRefused(t *testing.T) {
	o := options(t, local.RuntimeProcess)
	require.NoError(t, os.Mkdir(o.StateDir, 0o700))
	require.NoError(t, os.Chmod(o.StateDir, 0o777))
	_, err := local.New(t.Context(), o)
	require.ErrorContains(t, err, "must belong to this user")
}

// A folder without a record is nobody's sandbox, and yet this broker's to remove.
func TestSweepOfAHalfMadeSandbox(t *testing.T) {
	o := options(t, local.RuntimeProcess)
	half := filepath.Join(o.StateDir, "sandboxes", "sbx-half")
	require.NoError(t, os.MkdirAll(half, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(half, "sandbox.json"), []byte(`{"na`), 0o600))
	open(t, o)
	require.NoDirExists(t, half)
}

func TestMissingPrograms(t *testing.T) {
	o := options(t, local.RuntimeProcess)
	o.Runtime, o.Runsc = local.RuntimeRunsc, filepath.Join(t.TempDir(), "runsc")
	_, err := local.New(t.Context(), o)
	var none *local.NoRunscError
	require.ErrorAs(t, err, &none)
	require.ErrorContains(t, err, "`make runsc`")
	require.ErrorContains(t, err, "--insecure-no-isolation")

	o = options(t, local.RuntimeProcess)
	o.Runner = filepath.Join(t.TempDir(), "sandbox-runner")
	_, err = local.New(t.Context(), o)
	require.ErrorContains(t, err, "provider.local.runner")

	o = options(t, local.RuntimeProcess)
	o.Runtime = "docker"
	_, err = local.New(t.Context(), o)
	require.ErrorContains(t, err, `"docker" is neither runsc nor process`)
}

// A sandbox that dies while it is warm is replaced, and never handed out.
func TestDeadWarmSandboxIsReplaced(t *testing.T) {
	o := options(t, local.RuntimeProcess)
	p := open(t, o)
	require.Eventually(t, func() bool { return p.Warm("test") == 1 }, time.Minute, time.Millisecond)
	first, err := filepath.Glob(filepath.Join(o.StateDir, "sandboxes", "*"))
	require.NoError(t, err)
	require.Len(t, first, 1)
	for _, pid := range children(t) {
		require.NoError(t, syscall.Kill(pid, syscall.SIGKILL))
	}
	require.Eventually(t, func() bool {
		now, err := filepath.Glob(filepath.Join(o.StateDir, "sandboxes", "*"))
		return err == nil && len(now) == 1 && now[0] != first[0] && p.Warm("test") == 1
	}, time.Minute, time.Millisecond)
	sb, err := p.Take(t.Context(), broker.TakeRequest{WarmPool: "test", Until: time.Now().Add(time.Minute)})
	require.NoError(t, err)
	require.NotEqual(t, filepath.Base(first[0]), sb.ID().Name)
}

// A sandbox that starts while the provider closes is ended too.
func TestCloseWhileSandboxesStart(t *testing.T) {
	for range 20 {
		o := options(t, local.RuntimeProcess)
		p, err := local.New(t.Context(), o)
		require.NoError(t, err)
		require.Eventually(t, func() bool {
			found, err := filepath.Glob(filepath.Join(o.StateDir, "sandboxes", "*"))
			return err == nil && len(found) > 0
		}, time.Minute, 10*time.Microsecond)
		require.NoError(t, p.Close(within(t, 20*time.Second)))
		require.NoDirExists(t, o.StateDir)
	}
}

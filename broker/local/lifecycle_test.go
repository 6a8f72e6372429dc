//go:build linux

package local_test

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbox-broker/sandbox-broker/broker"
	"github.com/sandbox-broker/sandbox-broker/broker/local"
	"github.com/sandbox-broker/sandbox-broker/internal/channel"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
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
		var sb broker.Sandbox
		if sb, err = p.Take(ctx, broker.TakeRequest{WarmPool: "test", Until: time.Now().Add(brokerLife)}); err == nil {
			err = leaveProgram(ctx, sb)
		}
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

// leaveProgram starts a program that leaves its session behind.
func leaveProgram(ctx context.Context, sb broker.Sandbox) error {
	conn, err := sb.Dial(ctx)
	if err != nil {
		return err
	}
	ch, err := channel.Open(ctx, conn, bytes.Repeat([]byte("k"), 32), "")
	if err != nil {
		return err
	}
	if err := ch.Bind(ctx, channel.Bind{Lease: "l", Tenant: "t"}); err != nil {
		return err
	}
	s, err := ch.Exec(ctx, "e", channel.Start{
		Bind: channel.Bind{Lease: "l", Tenant: "t"}, Timeout: brokerLife, Stdout: wire.Credit{Limit: 1000}, Stderr: wire.Credit{Limit: 1000},
		Program: &wire.Program{Argv: []string{"sh", "-c", "setsid sleep 97531 & echo up; wait"}},
	}, nil)
	for err == nil {
		var f wire.Frame
		if f, err = s.Recv(); err == nil && f.Kind == wire.KindStdout {
			return nil
		}
	}
	return err
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

			if rt == local.RuntimeRunsc {
				require.Eventually(t, func() bool { return len(processesWith(o.StateDir)) == 0 }, 20*time.Second, 10*time.Millisecond,
					"its sandboxes die with it")
			}
			p := open(t, o) // sweeps; that Close leaves nothing is checked by open
			found, err := p.List(t.Context())
			require.NoError(t, err)
			require.Empty(t, found)
			for _, dir := range left {
				require.NoDirExists(t, dir)
			}
			require.Empty(t, processesWith("sleep\x0097531"), "nor a program that left its session")
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
	require.DirExists(t, o.StateDir, "the first one's is untouched")
}

// What a broker finds in its state folder it trusts and removes. So the folder
// must be its own, and what is not is kept.
func TestStateFolderMustBeTheBrokersOwn(t *testing.T) {
	keep := func(t *testing.T, dir string) string {
		t.Helper()
		file := filepath.Join(dir, "thesis")
		require.NoError(t, os.WriteFile(file, []byte("x"), 0o600))
		return file
	}
	t.Run("writable for others", func(t *testing.T) {
		o := options(t, local.RuntimeProcess)
		require.NoError(t, os.Mkdir(o.StateDir, 0o700))
		require.NoError(t, os.Chmod(o.StateDir, 0o777))
		_, err := local.New(t.Context(), o)
		require.ErrorContains(t, err, "writable for nobody else")
	})
	t.Run("a link", func(t *testing.T) {
		o := options(t, local.RuntimeProcess)
		victim := t.TempDir()
		file := keep(t, victim)
		require.NoError(t, os.Symlink(victim, o.StateDir))
		_, err := local.New(t.Context(), o)
		require.ErrorContains(t, err, "must be a folder of this user")
		require.FileExists(t, file)
	})
	t.Run("with files of somebody", func(t *testing.T) {
		o := options(t, local.RuntimeProcess)
		require.NoError(t, os.Mkdir(o.StateDir, 0o700))
		file := keep(t, o.StateDir)
		_, err := local.New(t.Context(), o)
		require.ErrorContains(t, err, "holds thesis, which no broker made")
		require.FileExists(t, file)
	})
	t.Run("with files that came later", func(t *testing.T) {
		o := options(t, local.RuntimeProcess)
		p, err := local.New(t.Context(), o)
		require.NoError(t, err)
		file := keep(t, o.StateDir)
		require.NoError(t, p.Close(within(t, time.Minute)))
		require.FileExists(t, file)
	})
	t.Run("after a start that failed", func(t *testing.T) {
		o := options(t, local.RuntimeProcess)
		o.Runtime, o.Runsc = local.RuntimeRunsc, "/nowhere"
		_, err := local.New(t.Context(), o)
		require.Error(t, err)
		require.NoDirExists(t, o.StateDir)
	})
}

// A sandbox whose record was not finished is a folder and nothing else.
func TestSweepOfAHalfMadeSandbox(t *testing.T) {
	o := options(t, local.RuntimeProcess)
	half := filepath.Join(o.StateDir, "sandboxes", "sbx-half")
	require.NoError(t, os.MkdirAll(half, 0o700))
	require.NoError(t, os.WriteFile(filepath.Join(o.StateDir, "lock"), nil, 0o600))
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

// What connects to a sandbox writes in its folder while it starts. The folder goes all
// the same, whenever the sandbox dies.
func TestASandboxThatDiesWhileItIsDialledLeavesNothing(t *testing.T) {
	for _, rt := range []local.RuntimeName{local.RuntimeProcess, local.RuntimeRunsc} {
		t.Run(string(rt), func(t *testing.T) {
			const deaths, dials = 10, 8
			o := options(t, rt)
			p := open(t, o)
			for range deaths {
				sb, err := p.Take(within(t, time.Minute), broker.TakeRequest{WarmPool: "test", Until: time.Now().Add(time.Minute)})
				require.NoError(t, err)
				var dialling sync.WaitGroup
				for range dials {
					dialling.Go(func() {
						if conn, err := sb.Dial(t.Context()); err == nil {
							defer func() { _ = conn.Close() }()
							_, _ = conn.Read(make([]byte, 1)) // the runner greets, unless it is dead
						}
					})
				}
				require.NoError(t, killOutside(sb.ID()))
				require.NoError(t, sb.End(within(t, time.Minute)))
				require.NoDirExists(t, filepath.Join(o.StateDir, "sandboxes", sb.ID().Name))
				dialling.Wait()
				require.NoDirExists(t, filepath.Join(o.StateDir, "sandboxes", sb.ID().Name))
			}
		})
	}
}

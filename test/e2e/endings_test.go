//go:build e2e

package e2e

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	sandboxv1beta1 "sigs.k8s.io/agent-sandbox/api/v1beta1"
	extensionsv1beta1 "sigs.k8s.io/agent-sandbox/extensions/api/v1beta1"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient"
)

func ending(t *testing.T, err error) sandboxclient.Ending {
	t.Helper()
	if err == nil {
		return sandboxclient.Ending{Reason: sandboxclient.ReasonExited}
	}
	var exit *sandboxclient.ExitError
	require.ErrorAs(t, err, &exit)
	return exit.Ending
}

func TestExits(t *testing.T) {
	c := newClient(t)
	lease, err := c.Acquire(within(t, time.Minute), slow)
	require.NoError(t, err)
	defer func() { require.NoError(t, lease.Release(within(t, time.Minute))) }()
	for name, tc := range map[string]struct {
		script string
		stdin  io.Reader
		want   sandboxclient.Ending
		stdout string
	}{
		"0":                      {"exit 0", nil, sandboxclient.Ending{Reason: sandboxclient.ReasonExited}, ""},
		"1":                      {"exit 1", nil, sandboxclient.Ending{Reason: sandboxclient.ReasonExited, ExitCode: 1}, ""},
		"3":                      {"exit 3", nil, sandboxclient.Ending{Reason: sandboxclient.ReasonExited, ExitCode: 3}, ""},
		"255":                    {"exit 255", nil, sandboxclient.Ending{Reason: sandboxclient.ReasonExited, ExitCode: 255}, ""},
		"signal":                 {"kill -SEGV $$", nil, sandboxclient.Ending{Reason: sandboxclient.ReasonSignaled, Signal: "SIGSEGV"}, ""},
		"child in background":    {"sleep 300 & echo up", nil, sandboxclient.Ending{Reason: sandboxclient.ReasonExited}, "up\n"},
		"daemon":                 {"setsid sh -c 'sleep 300 & sleep 300' & echo up", nil, sandboxclient.Ending{Reason: sandboxclient.ReasonExited}, "up\n"},
		"stdin with half close":  {"cat; echo end", strings.NewReader("hello\n"), sandboxclient.Ending{Reason: sandboxclient.ReasonExited}, "hello\nend\n"},
		"stdin never read":       {"exit 3", strings.NewReader(strings.Repeat("x", 1<<20)), sandboxclient.Ending{Reason: sandboxclient.ReasonExited, ExitCode: 3}, ""},
		"stdin that never comes": {"cat; echo end", nil, sandboxclient.Ending{Reason: sandboxclient.ReasonExited}, "end\n"},
	} {
		t.Run(name, func(t *testing.T) {
			began := time.Now()
			cmd := lease.Script("shell", tc.script)
			cmd.Stdin = tc.stdin
			out, err := cmd.Output(within(t, time.Minute))
			got := ending(t, err)
			require.Equal(t, tc.want.Reason, got.Reason)
			require.Equal(t, tc.want.ExitCode, got.ExitCode)
			require.Equal(t, tc.want.Signal, got.Signal)
			require.Equal(t, tc.stdout, string(out))
			require.Less(t, time.Since(began), 30*time.Second)
		})
	}
	left, err := lease.Script("shell", "grep -l sleep /proc/[0-9]*/comm | wc -l").Output(within(t, time.Minute))
	require.NoError(t, err)
	require.Equal(t, "0\n", string(left), "what an exec started ends with it")
}

func TestTimeout(t *testing.T) {
	c := newClient(t)
	ctx := within(t, time.Minute)
	lease, err := c.Acquire(ctx, slow)
	require.NoError(t, err)
	cmd := lease.Script("shell", "echo before; sleep 60")
	cmd.Timeout = 2 * time.Second
	began := time.Now()
	out, err := cmd.Output(ctx)
	took := time.Since(began)
	require.Equal(t, sandboxclient.ReasonTimeout, ending(t, err).Reason)
	require.Equal(t, "before\n", string(out))
	require.GreaterOrEqual(t, took, 2*time.Second)
	left, err := lease.Script("shell", "grep -l sleep /proc/[0-9]*/comm | wc -l").Output(ctx)
	require.NoError(t, err)
	require.Equal(t, "0\n", string(left), "nothing is left running")
	require.NoError(t, lease.Release(ctx))

	// The same by the command line: 124, as timeout(1).
	cli := exec.CommandContext(ctx, filepath.Join(root(), "bin", "sandbox-broker"), "run", "--server", site.url, "--token-file", tokenFile(t),
		"--pool", slow, "--language", "shell", "--timeout", "2s", "-e", "echo before; sleep 60")
	text, err := cli.Output()
	var exit *exec.ExitError
	require.ErrorAs(t, err, &exit)
	require.Equal(t, 124, exit.ExitCode())
	require.Equal(t, "before\n", string(text))
	requireNoLease(t, goneWithin)
}

func tokenFile(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "token")
	require.NoError(t, os.WriteFile(path, []byte(token), 0o600))
	return path
}

func TestClientKilledInMidRun(t *testing.T) {
	settle(t)
	ctx := within(t, time.Minute)
	cli := exec.CommandContext(ctx, filepath.Join(root(), "bin", "sandbox-broker"), "run", "--server", site.url, "--token-file", tokenFile(t),
		"--pool", slow, "--language", "shell", "-e", "echo up; sleep 60")
	out, err := cli.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cli.Start())
	line := make([]byte, 3)
	_, err = io.ReadFull(out, line)
	require.NoError(t, err)
	claim := onlyLease(ctx, t)
	pod := podOf(ctx, t, claim.Name)
	require.NoError(t, cli.Process.Kill())
	_ = cli.Wait() // killed
	requireGone(t, claim, pod.Name, detachGrace+goneWithin)
}

// Each of these happens under a running exec and is reported as what it was;
// nothing runs a second time on the blank replacement, and the claim goes.
func TestDeathUnderARunningExec(t *testing.T) {
	for name, tc := range map[string]struct {
		source string
		strike func(t *testing.T, claim extensionsv1beta1.SandboxClaim, pod string)
		reason sandboxclient.Reason
		cause  sandboxclient.Cause
	}{
		"the pod is deleted": {
			"echo up; sleep 120", func(t *testing.T, _ extensionsv1beta1.SandboxClaim, pod string) {
				p := podByName(pod)
				require.NoError(t, k8s.Delete(within(t, time.Minute), p, client.GracePeriodSeconds(1)))
			}, sandboxclient.ReasonLost, "deleted",
		},
		"the sandbox is deleted": {
			"echo up; sleep 120", func(t *testing.T, _ extensionsv1beta1.SandboxClaim, pod string) {
				s := &sandboxv1beta1.Sandbox{}
				s.Namespace, s.Name = namespace, pod
				require.NoError(t, k8s.Delete(within(t, time.Minute), s))
			}, sandboxclient.ReasonLost, "deleted",
		},
		"the claim is deleted": {
			"echo up; sleep 120", func(t *testing.T, claim extensionsv1beta1.SandboxClaim, _ string) {
				require.NoError(t, k8s.Delete(within(t, time.Minute), &claim))
			}, sandboxclient.ReasonLost, "deleted",
		},
		"the pod is evicted":   {"echo up; sleep 120", evict, sandboxclient.ReasonLost, "evicted"},
		"the pod is preempted": {"echo up; sleep 120", preempt, sandboxclient.ReasonLost, "preempted"},
		"the node is lost":     {"echo up; sleep 120", loseNode, sandboxclient.ReasonLost, "node_lost"},
		"the program kills the first process": {
			"echo up; read x; kill -KILL 1; sleep 120", nil, sandboxclient.ReasonLost, "runner_killed",
		},
		"the memory limit is exceeded, and the runner does not look": {
			"echo up; read x; kill -STOP 1; exec python3 -c 'b = []\nwhile True: b.append(b\"m\" * (16 << 20))'", nil, sandboxclient.ReasonOOM, "",
		},
	} {
		t.Run(name, func(t *testing.T) {
			settle(t)
			ctx := within(t, 2*time.Minute)
			stdin, goOn := io.Pipe()
			out := &timedWriter{}
			done := make(chan error, 1)
			go func() {
				_, err := newClient(t).Run(ctx, sandboxclient.Code{Pool: slow, Language: "shell", Source: tc.source, Stdin: stdin, Stdout: out, Timeout: 100 * time.Second})
				done <- err
			}()
			claim := onlyLease(ctx, t)
			pod := podOf(ctx, t, claim.Name)
			eventually(t, 30*time.Second, "the program runs", func() bool { return out.String() == "up\n" })
			if tc.strike != nil {
				tc.strike(t, claim, pod.Name)
			} else {
				_, err := goOn.Write([]byte("\n"))
				require.NoError(t, err)
			}
			struck := time.Now()
			err := <-done
			require.NotErrorIs(t, err, ctx.Err())
			got := ending(t, err)
			require.Equal(t, tc.reason, got.Reason, got.Message)
			require.Equal(t, tc.cause, got.Cause, got.Message)
			require.False(t, got.Complete)
			require.EqualValues(t, 3, got.StdoutBytes)
			require.Equal(t, "up\n", out.String(), "nothing runs twice")
			t.Logf("reported after %s: %s", time.Since(struck).Round(10*time.Millisecond), got.Message)
			requireGone(t, claim, pod.Name, goneWithin)
		})
	}
}

// What keeps a sandbox from coming is told at once, as what it is, and leaves nothing.
func TestAcquireErrors(t *testing.T) {
	for name, tc := range map[string]struct {
		pool, reason, message string
		spoil                 func(t *testing.T, pod *corev1.PodSpec)
	}{
		"there is no such warm pool": {"missing", "configuration", "no-such-pool", nil},
		"the image cannot be pulled": {"no-image", "image_error", "localhost/e2e/no-such-image:1", func(_ *testing.T, pod *corev1.PodSpec) {
			pod.Containers[0].Image = "localhost/e2e/no-such-image:1"
		}},
		"no node takes the pod": {"no-node", "unschedulable", "nodes are available", func(_ *testing.T, pod *corev1.PodSpec) {
			pod.NodeSelector = map[string]string{"sandbox-broker.dev/e2e": "no-such-node"}
		}},
		"the quota is used up": {"no-quota", "quota", "exceeded quota: e2e-quota", func(t *testing.T, pod *corev1.PodSpec) {
			pod.PriorityClassName = quotaFor(t)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			if tc.spoil != nil {
				spoiledPool(t, tc.pool, tc.spoil)
			}
			_, err := newClient(t).Run(within(t, time.Minute), sandboxclient.Code{Pool: tc.pool, Language: "shell", Source: "true"})
			require.ErrorIs(t, err, sandboxclient.ErrNotReady)
			var e *sandboxclient.Error
			require.True(t, errors.As(err, &e))
			require.Equal(t, tc.reason, e.Reason, e.Message)
			require.Contains(t, e.Message, tc.message)
			eventually(t, goneWithin, "no claim is left", func() bool {
				claims, err := claimsOf(within(t, 10*time.Second), "e2e")
				require.NoError(t, err)
				return !slices.ContainsFunc(claims, func(c extensionsv1beta1.SandboxClaim) bool {
					return c.Labels["sandbox-broker.dev/pool"] == tc.pool
				})
			})
		})
	}
}

// A program that writes without an end is stopped at its limit, with the output so far.
func TestOutputLimit(t *testing.T) {
	const limit = 1 << 20
	var got countingWriter
	_, err := newClient(t).Run(within(t, time.Minute), sandboxclient.Code{Pool: fast, Language: "shell", Source: "yes", OutputLimit: limit, Stdout: &got})
	n := ending(t, err)
	require.Equal(t, sandboxclient.ReasonOutputLimit, n.Reason, n.Message)
	require.True(t, n.Complete, "of what it might write")
	require.EqualValues(t, limit, n.StdoutBytes)
	require.EqualValues(t, limit, got)
}

type countingWriter int64

func (w *countingWriter) Write(p []byte) (int, error) {
	*w += countingWriter(len(p))
	return len(p), nil
}

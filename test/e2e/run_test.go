//go:build e2e

package e2e

import (
	"bytes"
	"crypto/rand"
	"crypto/sha256"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient"
)

func TestLanguages(t *testing.T) {
	c := newClient(t)
	for lang, source := range map[string]string{
		"python": "print(1+1)",
		"node":   "console.log(1+1)",
		"shell":  "echo $((1+1))",
	} {
		t.Run(lang, func(t *testing.T) {
			res, err := c.Run(within(t, time.Minute), sandboxclient.Code{Pool: slow, Language: lang, Source: source})
			require.NoError(t, err)
			require.Equal(t, "2\n", string(res.Stdout))
			require.True(t, res.Ending.Complete)
		})
	}
}

func TestInsideIsGVisorAndLocked(t *testing.T) {
	res, err := newClient(t).Run(within(t, time.Minute), sandboxclient.Code{Pool: slow, Language: "shell", Source: `
		dmesg | grep -c gVisor
		id -u
		touch /usr/x 2>/dev/null && echo "the root is writable"
		touch /opt/sandbox-runner/x 2>/dev/null && echo "the runner is writable"
		touch /workspace/x /tmp/x "$HOME/x" && echo "the workspace is writable"
		ls /var/run/secrets 2>/dev/null && echo "there is a token"
		env | grep -E '^(KUBERNETES_|SANDBOX_MEMORY)' && echo "the cluster is in the environment"
		exit 0
	`})
	require.NoError(t, err)
	lines := strings.Split(strings.TrimSpace(string(res.Stdout)), "\n")
	require.Len(t, lines, 3, string(res.Stdout))
	n, err := strconv.Atoi(lines[0])
	require.NoError(t, err)
	require.Positive(t, n, "dmesg shows gVisor")
	require.NotEqual(t, "0", lines[1], "not root")
	require.Equal(t, "the workspace is writable", lines[2])
}

func TestClaimAndPodAreGoneAfterTheRun(t *testing.T) {
	settle(t)
	ctx := within(t, time.Minute)
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() {
		_, err := newClient(t).Run(ctx, sandboxclient.Code{Pool: slow, Language: "shell", Source: "read x", Stdin: r})
		done <- err
	}()
	claim := onlyLease(ctx, t)
	pod := podOf(ctx, t, claim.Name)
	require.Equal(t, "Delete", string(claim.Spec.Lifecycle.ShutdownPolicy))
	until := time.Until(claim.Spec.Lifecycle.ShutdownTime.Time)
	require.Positive(t, until)
	require.Less(t, until, 7*time.Minute, "the claim's end is the run's, not the ten minutes of the stock")
	_, err := w.Write([]byte("\n"))
	require.NoError(t, err)
	require.NoError(t, <-done)
	requireGone(t, claim, pod.Name, goneWithin)
}

func TestOutputIsSeenAsItAppears(t *testing.T) {
	out := &timedWriter{}
	_, err := newClient(t).Run(within(t, time.Minute), sandboxclient.Code{
		Pool: slow, Language: "python", Stdout: out,
		Source: "import time\nfor i in range(6):\n    print(i)\n    time.sleep(0.4)\n",
	})
	end := time.Now()
	require.NoError(t, err)
	require.Equal(t, "0\n1\n2\n3\n4\n5\n", out.String())
	times := out.times()
	require.Greater(t, end.Sub(times[0]), 900*time.Millisecond, "the first line comes long before the end")
	// Seen one by one: on a busy machine two may fall together, not all.
	apart := 0
	for i := range times[1:] {
		if times[i+1].Sub(times[i]) > 50*time.Millisecond {
			apart++
		}
	}
	require.GreaterOrEqual(t, apart, 3)
}

func TestHundredMegabytesOfStdout(t *testing.T) {
	const size = 100 << 20
	idle := site.rss(t)
	var peak int64
	h := sha256.New()
	n, last := 0, 0
	watch := writerFunc(func(p []byte) (int, error) {
		n += len(p)
		if n-last > 1<<20 {
			last = n
			peak = max(peak, site.rss(t))
		}
		return h.Write(p)
	})
	_, err := newClient(t).Run(within(t, 4*time.Minute), sandboxclient.Code{
		Pool: slow, Language: "python", Stdout: watch, Timeout: 200 * time.Second,
		Source: fmt.Sprintf("import sys\nb = bytes(range(256)) * 256\nfor i in range(%d):\n    sys.stdout.buffer.write(b)\n", size/65536),
	})
	require.NoError(t, err)
	require.Equal(t, size, n)
	want := sha256.New()
	block := make([]byte, 65536)
	for i := range block {
		block[i] = byte(i)
	}
	for range size / len(block) {
		want.Write(block)
	}
	require.Equal(t, want.Sum(nil), h.Sum(nil))
	require.Less(t, peak-idle, int64(100<<20), "broker memory above idle, in bytes")
	t.Logf("broker: %d MiB idle, at most %d MiB meanwhile", idle>>20, peak>>20)
}

// rss is the broker's resident memory, in bytes.
func (b *brokerProcess) rss(t *testing.T) int64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", b.cmd.Process.Pid))
	require.NoError(t, err)
	pages, err := strconv.ParseInt(strings.Fields(string(text))[1], 10, 64)
	require.NoError(t, err)
	return pages * int64(os.Getpagesize())
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestOutputsKeepTheirOwnOrder(t *testing.T) {
	res, err := newClient(t).Run(within(t, time.Minute), sandboxclient.Code{
		Pool: slow, Language: "python",
		Source: "import sys\nfor i in range(5000):\n    print(i)\n    print(-i, file=sys.stderr)\n",
	})
	require.NoError(t, err)
	for name, got := range map[string][]byte{"stdout": res.Stdout, "stderr": res.Stderr} {
		sign := ""
		if name == "stderr" {
			sign = "-"
		}
		lines := strings.Split(strings.TrimSuffix(string(got), "\n"), "\n")
		require.Len(t, lines, 5000, name)
		for i, line := range lines {
			require.Equal(t, strings.Replace(sign+strconv.Itoa(i), "-0", "0", 1), line, name)
		}
	}
}

func TestBinaryBytesPassUnchanged(t *testing.T) {
	in := make([]byte, 1<<20)
	_, err := rand.Read(in)
	require.NoError(t, err)
	res, err := newClient(t).Run(within(t, time.Minute), sandboxclient.Code{Pool: slow, Language: "shell", Source: "cat", Stdin: bytes.NewReader(in)})
	require.NoError(t, err)
	require.True(t, bytes.Equal(in, res.Stdout), "%d bytes came back of %d", len(res.Stdout), len(in))
}

func TestLeaseKeepsFilesBetweenExecs(t *testing.T) {
	settle(t)
	ctx := within(t, time.Minute)
	lease, err := newClient(t).Acquire(ctx, slow)
	require.NoError(t, err)
	require.Equal(t, "gvisor", lease.Isolation())
	claim := onlyLease(ctx, t)
	pod := podOf(ctx, t, claim.Name)
	require.NoError(t, lease.Script("python", "open('f', 'w').write('kept')").Run(ctx))
	out, err := lease.Command("cat", "f").Output(ctx)
	require.NoError(t, err)
	require.Equal(t, "kept", string(out))
	require.NoError(t, lease.Release(ctx))
	requireGone(t, claim, pod.Name, goneWithin)
}

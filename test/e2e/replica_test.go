//go:build e2e

package e2e

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient"
)

// replicaInstance is the instance of the two brokers of TestReplicas.
const replicaInstance = "e2e-replicas"

// takenOverWithin is how soon after a replica's death another one must own what it
// left: its silence, a look at it, and room for a busy machine.
const takenOverWithin = 40 * time.Second

// replicaDir is the folder of an instance, of which nothing is left after the test.
func replicaDir(t *testing.T) string {
	t.Helper()
	t.Cleanup(func() { // if it failed
		claims, err := claimsOf(within(t, 10*time.Second), replicaInstance)
		require.NoError(t, err)
		for i := range claims {
			require.NoError(t, client.IgnoreNotFound(k8s.Delete(within(t, 10*time.Second), &claims[i])))
		}
	})
	return t.TempDir()
}

// removeDeadLease removes what the one replica that was killed has left: others would do
// it in a minute. Those that left in peace have taken theirs along.
func removeDeadLease(ctx context.Context, t *testing.T) {
	t.Helper()
	var leases coordinationv1.LeaseList
	require.NoError(t, k8s.List(ctx, &leases, client.InNamespace(namespace), client.MatchingLabels{"sandbox-broker.dev/instance": replicaInstance}))
	require.LessOrEqual(t, len(leases.Items), 1, "the one that left has taken its coordination Lease along")
	for i := range leases.Items {
		require.NoError(t, k8s.Delete(ctx, &leases.Items[i]))
	}
}

// startReplica runs one more broker of an instance.
func startReplica(t *testing.T, dir string) *brokerProcess {
	t.Helper()
	b, err := startBroker(dir, replicaInstance)
	require.NoError(t, err)
	t.Cleanup(func() {
		if b.cmd.ProcessState == nil {
			require.NoError(t, b.stop())
		}
		if t.Failed() {
			t.Logf("the end of its log:\n%s", b.log.tail(40))
		}
	})
	return b
}

func (b *brokerProcess) client(t *testing.T) *sandboxclient.Client {
	t.Helper()
	c, err := sandboxclient.New(b.url, sandboxclient.WithToken(token))
	require.NoError(t, err)
	t.Cleanup(func() { _ = c.Close() })
	return c
}

// owners counts the claims of the instance by the replica that owns them.
func owners(t *testing.T) map[string]int {
	t.Helper()
	claims, err := claimsOf(within(t, 10*time.Second), replicaInstance)
	require.NoError(t, err)
	out := map[string]int{}
	for _, c := range claims {
		out[c.Labels["sandbox-broker.dev/owner"]]++
	}
	return out
}

// TestReplicas has two brokers share their sandboxes on a real cluster, and kills one.
func TestReplicas(t *testing.T) {
	settle(t)
	ctx := within(t, 4*time.Minute)
	dir := replicaDir(t)
	first := startReplica(t, dir)
	a := first.client(t)
	lease, err := a.Acquire(ctx, slow)
	require.NoError(t, err)
	cmd := lease.Command("sh", "-c", "echo kept >file")
	require.NoError(t, cmd.Run(ctx))
	eventually(t, time.Minute, "the stock is there", func() bool { return len(owners(t)) == 1 && owners(t)[""] == 0 && sum(owners(t)) == 2 })

	dead := only(t, owners(t))

	second := startReplica(t, dir)
	b := second.client(t)
	there := b.Lease(lease.Handle())
	out, err := there.Command("cat", "file").Output(ctx)
	require.NoError(t, err)
	require.Equal(t, "kept\n", string(out), "the other replica serves the lease")

	// A program of the lease goes on while the broker that its client uses dies.
	running := lease.Command("sh", "-c", "echo begun; while [ ! -e go ]; do sleep 0.1; done; echo done >>file")
	began := &firstLine{seen: make(chan struct{})}
	running.Stdout = began
	ended := make(chan error, 1)
	watching, leave := context.WithCancel(ctx)
	defer leave()
	go func() { ended <- running.Run(watching) }()
	select {
	case <-began.seen:
	case <-ctx.Done():
		t.Fatal("the program printed nothing")
	}
	require.NoError(t, first.cmd.Process.Kill())
	_ = first.cmd.Wait()
	leave() // it would come back to its broker for as long as the lease lives
	require.ErrorIs(t, <-ended, context.Canceled)

	_, err = there.Command("touch", "go").Output(ctx)
	require.NoError(t, err)
	eventually(t, time.Minute, "the program has gone on", func() bool {
		out, err := there.Command("cat", "file").Output(ctx)
		return err == nil && strings.Contains(string(out), "done")
	})
	eventually(t, takenOverWithin, "the dead replica owns nothing", func() bool { return owners(t)[dead] == 0 })
	require.Positive(t, sum(owners(t)))
	require.NoError(t, there.Release(ctx))

	require.NoError(t, second.stop())
	eventually(t, goneWithin, "nothing is left", func() bool { return sum(owners(t)) == 0 })
	removeDeadLease(ctx, t)
}

func sum(of map[string]int) int {
	n := 0
	for _, v := range of {
		n += v
	}
	return n
}

func only(t *testing.T, of map[string]int) string {
	t.Helper()
	require.Len(t, of, 1)
	for k := range of {
		return k
	}
	return ""
}

// firstLine tells when the first line has come.
type firstLine struct {
	buf  bytes.Buffer
	seen chan struct{}
}

func (f *firstLine) Write(p []byte) (int, error) {
	had := bytes.Contains(f.buf.Bytes(), []byte("\n"))
	n, err := f.buf.Write(p)
	if !had && bytes.Contains(f.buf.Bytes(), []byte("\n")) {
		close(f.seen)
	}
	return n, err
}

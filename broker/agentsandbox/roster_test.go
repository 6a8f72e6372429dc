package agentsandbox

import (
	"context"
	"net"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/cache/informertest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	extensionsv1beta1 "sigs.k8s.io/agent-sandbox/extensions/api/v1beta1"

	"github.com/sandbox-broker/sandbox-broker/broker"
)

func newRoster() *roster {
	return &roster{replica: "me", seen: map[string]sighting{}, asked: map[string]time.Time{}, left: map[string]bool{}}
}

func leaseOf(replica, version string) *coordinationv1.Lease {
	return &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Labels: map[string]string{labelOwner: replica}, ResourceVersion: version}}
}

// age makes what the roster knows older.
func (r *roster) age(d time.Duration) {
	r.renewed = r.renewed.Add(-d)
	for name, s := range r.seen {
		s.at = s.at.Add(-d)
		r.seen[name] = s
	}
	for name, at := range r.asked {
		r.asked[name] = at.Add(-d)
	}
}

func TestAReplicaIsSilentWhenItsLeaseStandsStill(t *testing.T) {
	t.Parallel()
	r := newRoster()
	r.saw(leaseOf("other", "1"))
	require.False(t, r.Silent("other"))
	require.Equal(t, 2, r.Replicas())
	r.age(ownerGrace + time.Second)
	require.True(t, r.Silent("other"))
	require.Equal(t, 1, r.Replicas())
	r.saw(leaseOf("other", "1")) // the watch started anew and told the same
	require.True(t, r.Silent("other"))
	r.saw(leaseOf("other", "2"))
	require.False(t, r.Silent("other"), "it is back")
	r.gone(leaseOf("other", "2"))
	require.True(t, r.Silent("other"), "it said that it goes")
}

// The watch of Leases may be behind that of claims: that nobody has seen a replica yet
// does not mean that it is gone.
func TestAReplicaThatWasNeverSeenGetsTime(t *testing.T) {
	t.Parallel()
	r := newRoster()
	require.False(t, r.Silent("new"))
	r.age(ownerGrace / 2)
	require.False(t, r.Silent("new"))
	r.age(ownerGrace)
	require.True(t, r.Silent("new"))
	r.saw(leaseOf("new", "1"))
	require.False(t, r.Silent("new"))
}

// A replica stops trusting what it holds before the others may take it.
func TestAReplicaDoubtsItselfBeforeOthersDo(t *testing.T) {
	t.Parallel()
	r := newRoster()
	r.renewed = time.Now()
	require.True(t, r.Current())
	r.age(announceEvery + announceTimeout)
	require.True(t, r.Current(), "one renewal may be slow")
	r.age(ownerGrace - announceEvery - announceTimeout)
	require.False(t, r.Current())
}

// The owner hears of it when another replica takes a sandbox over, and of nothing else.
func TestMovedIsReported(t *testing.T) {
	t.Parallel()
	p := provider(t, interceptor.Funcs{})
	p.replica = "me"
	var moved []broker.SandboxID
	p.moved = func(id broker.SandboxID) { moved = append(moved, id) }
	id := broker.SandboxID{Name: "sbx-1", Claim: "claim-1", Pod: "pod-1"}
	p.known["claim-1"] = id
	as := func(uid types.UID, owner string) *extensionsv1beta1.SandboxClaim {
		return &extensionsv1beta1.SandboxClaim{ObjectMeta: metav1.ObjectMeta{UID: uid, Labels: map[string]string{labelOwner: owner}}}
	}
	p.claimChanged(nil, as("claim-1", "me"))
	p.claimChanged(as("claim-1", "me"), as("claim-1", "me"))
	p.claimChanged(as("unknown", "me"), as("unknown", "third"))
	p.claimChanged(as("claim-1", "third"), as("claim-1", "me"))
	require.Empty(t, moved)
	p.claimChanged(as("claim-1", "me"), as("claim-1", "third"))
	require.Equal(t, []broker.SandboxID{id}, moved)
}

// A replica that starts while its way to the API server is cut waits for it.
func TestJoiningWaitsForTheAPIServer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		failures := 2
		p := provider(t, interceptor.Funcs{Patch: func(ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch, opts ...client.PatchOption) error {
			if failures--; failures >= 0 {
				return &net.OpError{Op: "read", Err: syscall.ECONNRESET}
			}
			return c.Patch(ctx, o, patch, opts...)
		}})
		p.cache = &informertest.FakeInformers{Scheme: p.client.Scheme()}
		r, err := p.Join(t.Context(), t.Context(), "me", func(broker.SandboxID) {})
		require.NoError(t, err)
		require.True(t, r.Current())
		require.NoError(t, r.Leave(t.Context()))
	})
}

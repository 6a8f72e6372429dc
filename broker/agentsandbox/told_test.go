package agentsandbox

import (
	"strconv"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	"github.com/sandbox-broker/sandbox-broker/broker"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

func endedLease(n int) broker.Ended {
	return broker.Ended{Lease: "lease-" + strconv.Itoa(n), Execs: []string{"exec"}, Fate: broker.Fate{Reason: wire.ReasonLost, Cause: wire.CauseEvicted, Message: "it was evicted"}}
}

// What one replica tells of its endings the others know, also when it has gone.
func TestEndingsAreToldBetweenReplicas(t *testing.T) {
	t.Parallel()
	teller := newRoster()
	teller.p, teller.replica = provider(t, interceptor.Funcs{}), "teller"
	require.NoError(t, teller.announce(t.Context()))
	require.NoError(t, teller.Tell(t.Context(), []broker.Ended{endedLease(1)}))
	require.NoError(t, teller.announce(t.Context()), "it goes on")
	require.NoError(t, teller.Tell(t.Context(), []broker.Ended{endedLease(1), endedLease(2)}))

	var l coordinationv1.Lease
	require.NoError(t, teller.p.client.Get(t.Context(), client.ObjectKeyFromObject(teller.lease()), &l))
	r := newRoster()
	require.Empty(t, r.Told("lease-1"))
	r.saw(&l)
	require.Equal(t, []broker.Ended{endedLease(1)}, r.Told("lease-1"))
	third := l.DeepCopy()
	third.Labels[labelOwner] = "third"
	r.saw(third)
	require.Len(t, r.Told("lease-1"), 2, "each replica knows some of the programs")
	r.gone(&l)
	require.Len(t, r.Told("lease-2"), 2)

	teller.saw(&l)
	require.Empty(t, teller.Told("lease-1"), "its own it knows without")
	for i := range r.told {
		r.told[i].at = r.told[i].at.Add(-toldKept)
	}
	require.Empty(t, r.Told("lease-1"), "it was long ago")
	third.ResourceVersion += "1"
	r.saw(third)
	require.Empty(t, r.Told("lease-1"), "that a Lease was renewed is no news of what it tells")
}

// A replica that tells nonsense, or without an end, harms nobody.
func TestWhatIsToldIsBounded(t *testing.T) {
	t.Parallel()
	r := newRoster()
	r.p = provider(t, interceptor.Funcs{})
	l := leaseOf("other", "1")
	l.Annotations = map[string]string{annotationEnded: "{"}
	r.saw(l)
	require.Empty(t, r.told)
	for i := range maxTold + 10 {
		r.told = append(r.told, told{Ended: endedLease(i), at: time.Now()})
	}
	l = leaseOf("other", "2")
	l.Annotations = map[string]string{annotationEnded: `[{"lease":"new","execs":["e"],"fate":{"reason":"oom","message":""}}]`}
	r.saw(l)
	require.Len(t, r.told, maxTold)
	require.Len(t, r.Told("new"), 1)
}

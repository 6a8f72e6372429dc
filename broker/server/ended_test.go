package server_test

import (
	"errors"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandbox-broker/sandbox-broker/broker"
	"github.com/sandbox-broker/sandbox-broker/internal/cutproxy"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

var fateOOM = broker.Fate{Reason: wire.ReasonOOM, Message: "the kernel killed the sandbox"}

// beginAndLeave begins a run over a proxy, and cuts its client off when it is recorded.
func (s *site) beginAndLeave(p *cutproxy.Proxy) (out *pages, done chan runEnd) {
	s.t.Helper()
	out, done = s.begin(deadline(s.t), p, untilGo)
	eventually(s.t, "the run is recorded", func() bool { return s.provider.RecordedCount() == 1 })
	p.Refuse(true)
	p.Cut()
	return out, done
}

// Must hold: a program whose sandbox dies while its client is away has an ending, at
// whichever replica the client comes back to.
func TestAnEndingWaitsForWhoIsAway(t *testing.T) {
	for name, elsewhere := range map[string]bool{"the same replica": false, "another replica": true} {
		t.Run(name, func(t *testing.T) {
			a, b := newReplicas(t, patientPool())
			p := a.proxy(cutproxy.Plan{})
			out, done := a.beginAndLeave(p)
			a.provider.Any().Die(fateOOM)
			eventually(t, "the sandbox is gone", func() bool { return a.provider.Live() == 0 })
			if elsewhere {
				p.SetTarget(b.address())
			}
			p.Refuse(false)
			end := <-done
			var exit *sandboxclient.ExitError
			require.ErrorAs(t, end.err, &exit)
			require.Equal(t, sandboxclient.ReasonOOM, exit.Ending.Reason)
			require.False(t, exit.Ending.Complete)
			require.Equal(t, fateOOM.Message, exit.Ending.Message)
			require.Equal(t, "begun\n", out.String())
		})
	}
}

// What the other replicas could not be told of at once, they are told later.
func TestAnEndingThatCouldNotBeToldIsToldAgain(t *testing.T) {
	a, b := newReplicas(t, patientPool())
	p := a.proxy(cutproxy.Plan{})
	_, done := a.beginAndLeave(p)
	a.replica.RefuseTells(1 << 30) // all of them, until it is taken back
	a.provider.Any().Die(fateOOM)
	eventually(t, "the sandbox is gone", func() bool { return a.provider.Live() == 0 })
	eventually(t, "it was refused", func() bool { return strings.Contains(a.log.String(), "could not be told of an ending yet") })
	require.False(t, a.replica.HasTold())
	a.replica.RefuseTells(0)
	eventually(t, "the others are told", a.replica.HasTold)
	p.SetTarget(b.address())
	p.Refuse(false)
	end := <-done
	var exit *sandboxclient.ExitError
	require.ErrorAs(t, end.err, &exit)
	require.Equal(t, sandboxclient.ReasonOOM, exit.Ending.Reason)
}

// A claim whose sandbox has died lives on until the others know: nobody takes it for a
// lease meanwhile.
func TestAnEndedLeaseIsNotTakenUpAgain(t *testing.T) {
	a, _ := newReplicas(t, patientPool())
	p := a.proxy(cutproxy.Plan{})
	_, done := a.beginAndLeave(p)
	release := a.replica.HoldTells()
	defer release()
	a.provider.Any().Die(fateOOM)
	eventually(t, "the lease has ended here", func() bool { return a.owned() == 0 })
	p.Refuse(false)
	end := <-done
	var exit *sandboxclient.ExitError
	require.ErrorAs(t, end.err, &exit)
	require.Equal(t, sandboxclient.ReasonOOM, exit.Ending.Reason)
}

// A replica that carries a program of a lease which another one owns tells the same fate:
// that the claim is gone is no reason of its own.
func TestAGuestTellsTheOwnersReason(t *testing.T) {
	a, b := newReplicas(t, patientPool())
	lease, err := a.client(tokenA).Acquire(deadline(t), "test")
	require.NoError(t, err)
	eventually(t, "the lease is recorded", func() bool { return a.provider.RecordedCount() == 1 })
	here, there := lease.Command("sleep", "60"), b.client(tokenA).Lease(lease.Handle()).Command("sleep", "60")
	for _, cmd := range []*sandboxclient.Cmd{here, there} {
		require.NoError(t, cmd.Start(deadline(t)))
	}
	a.provider.Any().Die(fateOOM)
	for _, cmd := range []*sandboxclient.Cmd{here, there} {
		var exit *sandboxclient.ExitError
		require.ErrorAs(t, cmd.Wait(), &exit)
		require.Equal(t, sandboxclient.ReasonOOM, exit.Ending.Reason)
	}
}

// Only programs that went on until then have that ending: one that is over had its own,
// and a lease that was released just ended.
func TestOnlyWhatWentOnHasTheEnding(t *testing.T) {
	a, b := newReplicas(t, patientPool())
	lease, err := a.client(tokenA).Acquire(deadline(t), "test")
	require.NoError(t, err)
	over, open := lease.Command("true"), lease.Command("sleep", "60")
	require.NoError(t, over.Run(deadline(t)))
	require.NoError(t, open.Start(deadline(t)))
	eventually(t, "the lease is recorded", func() bool { return a.provider.RecordedCount() == 1 })
	other, err := a.client(tokenA).Acquire(deadline(t), "test")
	require.NoError(t, err)
	released := other.Command("sleep", "60")
	require.NoError(t, released.Start(deadline(t)))
	require.NoError(t, other.Release(deadline(t)))
	require.Error(t, released.Wait())
	a.provider.Any().Die(fateOOM)
	require.Error(t, open.Wait())
	for _, s := range []*site{a, b} {
		ending := func(token string, cmd *sandboxclient.Cmd) error {
			again, err := s.client(token).Attach(deadline(t), cmd.Handle(), sandboxclient.AttachOptions{})
			if err != nil {
				return err
			}
			return again.Wait()
		}
		var exit *sandboxclient.ExitError
		require.ErrorAs(t, ending(tokenA, open), &exit)
		require.Equal(t, sandboxclient.ReasonOOM, exit.Ending.Reason)
		require.ErrorIs(t, ending(tokenA, over), sandboxclient.ErrLeaseExpired)
		require.ErrorIs(t, ending(tokenA, released), sandboxclient.ErrLeaseExpired)
		require.ErrorIs(t, ending(tokenB, open), sandboxclient.ErrNotFound)
		_, err := s.client(tokenA).Lease(lease.Handle()).Command("true").Output(deadline(t))
		require.ErrorIs(t, err, sandboxclient.ErrLeaseExpired)
		require.False(t, errors.As(err, &exit))
	}
}

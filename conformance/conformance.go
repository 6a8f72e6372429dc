// Package conformance holds what every provider of sandboxes must do. A
// provider's own tests call [Provider] with a way to make one.
package conformance

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbox-broker/sandbox-broker/broker"
	"github.com/sandbox-broker/sandbox-broker/internal/channel"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// Subject is a provider under test.
type Subject struct {
	Provider broker.Provider
	Pool     string
	WarmPool string
	// Kill makes a sandbox's place of execution vanish behind the provider's back.
	Kill func(ctx context.Context, s broker.Sandbox) error
	// KilledAs is the cause with which such a death is reported; empty is
	// wire.CauseDeleted.
	KilledAs wire.Cause
	// Exists reports whether anything of a sandbox is left.
	Exists func(ctx context.Context, s broker.Sandbox) (bool, error)
	// Reopen makes another provider, as another broker of the same instance has
	// it. nil says that sandboxes end with their broker: what needs it is then
	// reported as not applicable.
	Reopen func(t *testing.T) broker.Provider
}

const (
	// patience bounds each wait of the suite.
	patience = 60 * time.Second
	// pollEvery is how often a state that cannot be watched is looked at.
	pollEvery = 20 * time.Millisecond
	// gone is how soon an ended sandbox must be gone, also on a machine that is
	// busy starting others.
	gone = 30 * time.Second
)

var key = []byte(strings.Repeat("k", 32))

// Provider runs the suite. Each test gets a subject of its own from newSubject.
func Provider(t *testing.T, newSubject func(t *testing.T) Subject) {
	for name, test := range map[string]func(context.Context, *testing.T, Subject){
		"a taken sandbox answers":               testAnswers,
		"channels are many, the boot is one":    testReconnect,
		"the first bind wins":                   testBind,
		"a record is found again":               testRecord,
		"an ended sandbox is gone":              testEnd,
		"ending twice is no error":              testEndTwice,
		"a death is reported once":              testDeath,
		"an end of its own is no news":          testEndIsNoDeath,
		"a cancelled take leaves nothing":       testCancelledTake,
		"a sandbox ends at its end":             testUntil,
		"an end can be moved":                   testExtend,
		"sandboxes are told apart":              testDistinct,
		"a dial to an ended sandbox is refused": testDialEnded,
		"another broker takes a sandbox up":     testReopen,
	} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(context.Background(), patience)
			defer cancel()
			test(ctx, t, newSubject(t))
		})
	}
}

func (s Subject) take(ctx context.Context, t *testing.T, life time.Duration) broker.Sandbox {
	t.Helper()
	sb, err := s.Provider.Take(ctx, broker.TakeRequest{Owner: "conformance", Pool: s.Pool, WarmPool: s.WarmPool, Until: time.Now().Add(life)})
	require.NoError(t, err)
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		require.NoError(t, sb.End(ctx))
	})
	return sb
}

func open(ctx context.Context, t *testing.T, sb broker.Sandbox, boot string) *channel.Client {
	t.Helper()
	conn, err := sb.Dial(ctx)
	require.NoError(t, err)
	ch, err := channel.Open(ctx, conn, key, boot)
	require.NoError(t, err)
	t.Cleanup(ch.Close)
	return ch
}

func (s Subject) awaitGone(ctx context.Context, t *testing.T, sb broker.Sandbox, within time.Duration) {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		exists, err := s.Exists(ctx, sb)
		if err == nil && !exists {
			return
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			t.Fatalf("sandbox %s is not gone after %s (last error: %v)", sb.ID().Name, within, err)
		}
	}
}

func testAnswers(ctx context.Context, t *testing.T, s Subject) {
	sb := s.take(ctx, t, time.Minute)
	require.NotEmpty(t, sb.ID().Name)
	require.Equal(t, s.Pool, sb.Info().Pool)
	require.NotEmpty(t, sb.Info().Isolation, "isolation is named, if it is none too")
	ch := open(ctx, t, sb, "")
	st, err := ch.Status(ctx)
	require.NoError(t, err)
	require.Equal(t, ch.Boot(), st.Boot)
	require.False(t, st.Bound)
	require.Zero(t, st.Execs)
}

func testReconnect(ctx context.Context, t *testing.T, s Subject) {
	sb := s.take(ctx, t, time.Minute)
	first := open(ctx, t, sb, "")
	second := open(ctx, t, sb, first.Boot())
	require.Equal(t, first.Boot(), second.Boot())
	first.Close()
	_, err := second.Status(ctx)
	require.NoError(t, err, "closing one channel must not end another")
}

func testBind(ctx context.Context, t *testing.T, s Subject) {
	ch := open(ctx, t, s.take(ctx, t, time.Minute), "")
	mine := channel.Bind{Lease: "mine", Tenant: "a"}
	require.NoError(t, ch.Bind(ctx, mine))
	require.NoError(t, ch.Bind(ctx, mine))
	require.ErrorIs(t, ch.Bind(ctx, channel.Bind{Lease: "other", Tenant: "a"}), wire.ErrConflict)
	require.ErrorIs(t, ch.Bind(ctx, channel.Bind{Lease: "mine", Tenant: "b"}), wire.ErrConflict)
}

// listWithin bounds how late List may be.
const listWithin = 5 * time.Second

func testRecord(ctx context.Context, t *testing.T, s Subject) {
	sb := s.take(ctx, t, time.Minute)
	want := broker.Record{Tenant: "team:a", Kind: broker.KindRun, Exec: "x1", Boot: "b", Until: time.Now().Add(time.Hour).UTC().Truncate(time.Second)}
	require.NoError(t, sb.Record(ctx, want))
	require.Eventually(t, func() bool {
		found, err := s.Provider.List(ctx)
		require.NoError(t, err)
		for _, f := range found {
			if r := f.Info().Record; f.ID().Name == sb.ID().Name && r != nil {
				require.Equal(t, want, *r)
				return true
			}
		}
		return false
	}, listWithin, 10*time.Millisecond, "List does not have the record")
}

func testEnd(ctx context.Context, t *testing.T, s Subject) {
	sb := s.take(ctx, t, time.Minute)
	exists, err := s.Exists(ctx, sb)
	require.NoError(t, err)
	require.True(t, exists)
	require.NoError(t, sb.End(ctx))
	s.awaitGone(ctx, t, sb, gone)
}

func testEndTwice(ctx context.Context, t *testing.T, s Subject) {
	sb := s.take(ctx, t, time.Minute)
	require.NoError(t, sb.End(ctx))
	s.awaitGone(ctx, t, sb, gone)
	require.NoError(t, sb.End(ctx))
}

// deaths watches until the test ends.
func (s Subject) deaths(t *testing.T) <-chan string {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	out := make(chan string, 16)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		_ = s.Provider.Watch(ctx, func(id broker.SandboxID, f broker.Fate) {
			out <- fmt.Sprintf("%s %s %s", id.Name, f.Reason, f.Cause)
		})
	}()
	t.Cleanup(func() { cancel(); <-stopped })
	return out
}

func testDeath(ctx context.Context, t *testing.T, s Subject) {
	died := s.deaths(t)
	sb := s.take(ctx, t, time.Minute)
	other := s.take(ctx, t, time.Minute)
	require.NoError(t, s.Kill(ctx, sb))
	select {
	case d := <-died:
		cause := s.KilledAs
		if cause == "" {
			cause = wire.CauseDeleted
		}
		require.Equal(t, fmt.Sprintf("%s %s %s", sb.ID().Name, wire.ReasonLost, cause), d)
	case <-ctx.Done():
		t.Fatal("the death was not reported")
	}
	// The other one's death comes next: nothing was reported twice in between.
	require.NoError(t, s.Kill(ctx, other))
	select {
	case d := <-died:
		require.Contains(t, d, other.ID().Name)
	case <-ctx.Done():
		t.Fatal("the second death was not reported")
	}
}

func testEndIsNoDeath(ctx context.Context, t *testing.T, s Subject) {
	died := s.deaths(t)
	sb, other := s.take(ctx, t, time.Minute), s.take(ctx, t, time.Minute)
	require.NoError(t, sb.End(ctx))
	s.awaitGone(ctx, t, sb, gone)
	require.NoError(t, s.Kill(ctx, other))
	select {
	case d := <-died:
		require.Contains(t, d, other.ID().Name, "a sandbox that was ended is reported as dead")
	case <-ctx.Done():
		t.Fatal("the death of the other one was not reported")
	}
}

func testCancelledTake(ctx context.Context, t *testing.T, s Subject) {
	before, err := s.Provider.List(ctx)
	require.NoError(t, err)
	cancelled, cancel := context.WithCancel(ctx)
	cancel()
	_, err = s.Provider.Take(cancelled, broker.TakeRequest{Owner: "conformance", Pool: s.Pool, WarmPool: s.WarmPool, Until: time.Now().Add(time.Minute)})
	require.Error(t, err)
	require.Eventually(t, func() bool {
		after, err := s.Provider.List(ctx)
		return err == nil && len(after) <= len(before)
	}, patience, pollEvery)
}

func testUntil(ctx context.Context, t *testing.T, s Subject) {
	sb := s.take(ctx, t, 2*time.Second)
	s.awaitGone(ctx, t, sb, patience)
}

func testExtend(ctx context.Context, t *testing.T, s Subject) {
	sb := s.take(ctx, t, time.Hour)
	require.NoError(t, sb.Extend(ctx, time.Now().Add(2*time.Second)))
	s.awaitGone(ctx, t, sb, patience)
}

func testDistinct(ctx context.Context, t *testing.T, s Subject) {
	a, b := s.take(ctx, t, time.Minute), s.take(ctx, t, time.Minute)
	require.NotEqual(t, a.ID().Name, b.ID().Name)
	require.NotEqual(t, a.ID().Claim, b.ID().Claim)
	require.NotEqual(t, a.ID().Pod, b.ID().Pod)
	require.NotEqual(t, open(ctx, t, a, "").Boot(), open(ctx, t, b, "").Boot())
}

func testDialEnded(ctx context.Context, t *testing.T, s Subject) {
	sb := s.take(ctx, t, time.Minute)
	require.NoError(t, sb.End(ctx))
	s.awaitGone(ctx, t, sb, gone)
	conn, err := sb.Dial(ctx)
	if err == nil { // the dial may be known to have failed only by the handshake
		_, err = channel.Open(ctx, conn, key, "")
	}
	require.Error(t, err)
}

func testReopen(ctx context.Context, t *testing.T, s Subject) {
	if s.Reopen == nil {
		t.Skip("not applicable: the provider's sandboxes end with their broker")
	}
	sb := s.take(ctx, t, time.Minute)
	boot := open(ctx, t, sb, "").Boot()
	want := broker.Record{Tenant: "a", Kind: broker.KindLease, Boot: boot, Until: time.Now().Add(time.Minute).UTC().Truncate(time.Second)}
	require.NoError(t, sb.Record(ctx, want))
	found, err := s.Reopen(t).List(ctx)
	require.NoError(t, err)
	for _, f := range found {
		if f.ID() == sb.ID() {
			require.Equal(t, &want, f.Info().Record)
			require.Equal(t, boot, open(ctx, t, f, boot).Boot())
			return
		}
	}
	t.Fatal("the other broker does not find the sandbox")
}

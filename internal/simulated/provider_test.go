package simulated

import (
	"context"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbox-broker/sandbox-broker/broker"
	"github.com/sandbox-broker/sandbox-broker/conformance"
	"github.com/sandbox-broker/sandbox-broker/internal/channel"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// patience bounds each test.
const patience = time.Minute

// quick are delays for tests that are not about them.
var quick = Delays{Claim: around(time.Millisecond), Attach: around(time.Millisecond), Write: around(time.Millisecond), Death: around(5 * time.Millisecond)}

func newProvider(t *testing.T, d Delays) *Provider {
	t.Helper()
	p, err := New(t.Context(), d, 1)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, p.Close()) })
	return p
}

func bounded(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	t.Cleanup(cancel)
	return ctx
}

// A stand-in counts only while it passes what the real providers pass.
func TestConformance(t *testing.T) {
	conformance.Provider(t, func(t *testing.T) conformance.Subject {
		p := newProvider(t, quick)
		return conformance.Subject{
			Provider: p, Pool: "test", WarmPool: "test",
			Kill: func(_ context.Context, s broker.Sandbox) error {
				s.(*Sandbox).Die(fateDeleted)
				return nil
			},
			Exists: func(ctx context.Context, s broker.Sandbox) (bool, error) {
				found, err := p.List(ctx)
				for _, f := range found {
					if f.ID() == s.ID() {
						return true, err
					}
				}
				return false, err
			},
		}
	})
}

func take(ctx context.Context, t *testing.T, p *Provider) *Sandbox {
	t.Helper()
	sb, err := p.Take(ctx, broker.TakeRequest{Pool: "test", WarmPool: "test", Until: time.Now().Add(patience)})
	require.NoError(t, err)
	return sb.(*Sandbox)
}

// However a sandbox dies, and however often, its death is news once; an end that
// comes later makes no second one of it.
func TestDeathIsReportedOnce(t *testing.T) {
	d := quick
	d.Life = around(5 * time.Millisecond)
	p, ctx := newProvider(t, d), bounded(t)
	const n = 50
	died := make(chan broker.SandboxID, 2*n)
	watching, stop := context.WithCancel(ctx)
	stopped := make(chan struct{})
	go func() {
		defer close(stopped)
		_ = p.Watch(watching, func(id broker.SandboxID, _ broker.Fate) { died <- id })
	}()
	seen := map[broker.SandboxID]int{}
	sandboxes := make([]*Sandbox, n)
	for i := range sandboxes {
		sandboxes[i] = take(ctx, t, p)
		sandboxes[i].Die(fateDeleted)
	}
	for range n {
		select {
		case id := <-died:
			seen[id]++
		case <-ctx.Done():
			t.Fatalf("%d of %d deaths were reported", len(seen), n)
		}
	}
	for _, s := range sandboxes {
		require.Equal(t, 1, seen[s.ID()])
		require.NoError(t, s.End(ctx))
	}
	stop()
	<-stopped
	require.Empty(t, died)
	require.Zero(t, p.Live())
}

// A death that nobody watched for is told to the next who does.
func TestDeathWaitsForAWatcher(t *testing.T) {
	p, ctx := newProvider(t, Delays{}), bounded(t)
	sb := take(ctx, t, p)
	sb.Die(fateDeleted)
	require.Eventually(t, func() bool {
		p.mu.Lock()
		defer p.mu.Unlock()
		return len(p.unheard) == 1
	}, patience, time.Millisecond)
	watching, stop := context.WithCancel(ctx)
	var calls atomic.Int32
	require.NoError(t, p.Watch(watching, func(id broker.SandboxID, _ broker.Fate) {
		require.Equal(t, sb.ID(), id)
		calls.Add(1)
		stop()
	}))
	require.EqualValues(t, 1, calls.Load())
}

func TestNothingIsLeftAfterClose(t *testing.T) {
	ctx := bounded(t)
	p, err := New(ctx, quick, 1)
	require.NoError(t, err)
	sb := take(ctx, t, p)
	ch := open(ctx, t, sb)
	take(ctx, t, p).Die(fateDeleted) // its report is still to come
	require.NoError(t, p.Close())
	select {
	case <-ch.Done():
	case <-ctx.Done():
		t.Fatal("a channel outlived its runner's process")
	}
	require.Zero(t, p.Live())
	_, err = p.Take(ctx, broker.TakeRequest{Pool: "test", Until: time.Now().Add(patience)})
	require.ErrorIs(t, err, ErrClosed)
	_, err = sb.Dial(ctx)
	require.ErrorIs(t, err, errGone)
}

func open(ctx context.Context, t *testing.T, sb broker.Sandbox) *channel.Client {
	t.Helper()
	conn, err := sb.Dial(ctx)
	require.NoError(t, err)
	ch, err := channel.Open(ctx, conn, []byte(strings.Repeat("k", 32)), "")
	require.NoError(t, err)
	t.Cleanup(ch.Close)
	return ch
}

// runIt starts a program, or attaches to it, and reads its output and ending.
func runIt(ctx context.Context, t *testing.T, ch *channel.Client, st channel.Start, p Program) (string, wire.Ending) {
	t.Helper()
	s, err := ch.Exec(ctx, "x", st, []byte(p.Source()))
	require.NoError(t, err)
	defer s.Close()
	var out strings.Builder
	for {
		f, err := s.Recv()
		require.NoError(t, err)
		switch f.Kind {
		case wire.KindStdout:
			require.EqualValues(t, st.Stdout.Acked+uint64(out.Len()), f.Offset)
			out.Write(f.Payload)
			at := f.Offset + uint64(len(f.Payload))
			require.NoError(t, s.Send(wire.Window{FD: wire.Stdout, Acked: at, Limit: at + 7}.Frame(0)))
		case wire.KindExit:
			var n wire.Ending
			require.NoError(t, wire.Unmarshal(f.Kind, f.Payload, &n))
			return out.String(), n
		}
	}
}

// theLease is the lease of these tests.
var theLease = channel.Bind{Lease: "l", Tenant: "a"}

func start() channel.Start {
	return channel.Start{Bind: theLease, Program: &wire.Program{Language: "simulated"}, Timeout: patience, Stdout: wire.Credit{Limit: 7}}
}

func bind(ctx context.Context, t *testing.T, ch *channel.Client) {
	t.Helper()
	require.NoError(t, ch.Bind(ctx, theLease))
}

// The runner keeps to its reader's credit and gives a second reader the rest.
func TestProgramRuns(t *testing.T) {
	p, ctx := newProvider(t, quick), bounded(t)
	ch := open(ctx, t, take(ctx, t, p))
	bind(ctx, t, ch)
	program := Program{Text: "0123456789", Times: 3, Every: time.Millisecond, ExitCode: 3}
	text := strings.Repeat("0123456789", 3)
	out, ending := runIt(ctx, t, ch, start(), program)
	require.Equal(t, text, out)
	require.Equal(t, wire.ReasonExited, ending.Reason)
	require.Equal(t, 3, ending.ExitCode)
	require.EqualValues(t, 30, ending.StdoutBytes)
	again := channel.Start{Bind: theLease, AttachOnly: true, Stdout: wire.Credit{Acked: 25, Limit: 40}}
	out, _ = runIt(ctx, t, ch, again, program)
	require.Equal(t, text[25:], out)
}

func TestProgramIsCanceled(t *testing.T) {
	p, ctx := newProvider(t, quick), bounded(t)
	ch := open(ctx, t, take(ctx, t, p))
	bind(ctx, t, ch)
	program := Program{After: time.Hour}
	s, err := ch.Exec(ctx, "x", start(), []byte(program.Source()))
	require.NoError(t, err)
	defer s.Close()
	require.NoError(t, s.Send(wire.Frame{Kind: wire.KindCancel}))
	var ending wire.Ending
	for ending.Reason == "" {
		f, err := s.Recv()
		require.NoError(t, err)
		if f.Kind == wire.KindExit {
			require.NoError(t, wire.Unmarshal(f.Kind, f.Payload, &ending))
		}
	}
	require.Equal(t, wire.ReasonCanceled, ending.Reason)
	require.NoError(t, s.Send(wire.Frame{Kind: wire.KindDone}))
	_, err = s.Recv()
	require.ErrorIs(t, err, io.EOF, "a confirmed ending ends the stream")
}

func TestProgramTimesOut(t *testing.T) {
	p, ctx := newProvider(t, quick), bounded(t)
	ch := open(ctx, t, take(ctx, t, p))
	bind(ctx, t, ch)
	program := Program{Text: "x", Times: 1 << 20, Every: time.Millisecond}
	st := start()
	st.Timeout = 20 * time.Millisecond
	_, ending := runIt(ctx, t, ch, st, program)
	require.Equal(t, wire.ReasonTimeout, ending.Reason)
}

package broker_test

import (
	"context"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbox-broker/sandbox-broker/broker"
	"github.com/sandbox-broker/sandbox-broker/internal/channel"
	"github.com/sandbox-broker/sandbox-broker/internal/hostile"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// doer makes a request, and sends frames after it when a second has passed.
type doer func(ctx context.Context, req wire.Request, later ...wire.Frame) *caller

// inLiar acquires a lease on a lying sandbox, and lets a test make requests in it. The
// clock is the bubble's.
func inLiar(t *testing.T, lie func(*hostile.Exec), f func(t *testing.T, lease string, do doer)) {
	t.Helper()
	inLiarOf(t, broker.PoolConfig{}, lie, f)
}

// inLiarOf is that in a pool with these settings.
func inLiarOf(t *testing.T, cfg broker.PoolConfig, lie func(*hostile.Exec), f func(t *testing.T, lease string, do doer)) {
	t.Helper()
	cfg.Name, cfg.Spares = "test", []string{}
	synctest.Test(t, func(t *testing.T) {
		p := hostile.New(t, hostile.Execs(lie))
		b, err := broker.New(t.Context(), broker.Options{
			Pools: []broker.PoolConfig{cfg}, Provider: p, Secret: []byte(strings.Repeat("s", broker.MinSecret)),
		})
		require.NoError(t, err)
		defer func() { require.NoError(t, b.Close(context.Background())) }()
		do := func(ctx context.Context, req wire.Request, later ...wire.Frame) *caller {
			c := &caller{frames: make(chan wire.Frame, len(later)+1), canceled: make(chan struct{})}
			time.AfterFunc(time.Second, func() {
				for _, f := range later {
					c.frames <- f
				}
			})
			err := b.Do(ctx, broker.Caller{Tenant: "a"}, req, []byte("true"), c)
			if ctx.Err() == nil {
				require.NoError(t, err)
			}
			return c
		}
		f(t, do(t.Context(), wire.Request{Op: wire.OpAcquire, Pool: "test", TTLMS: time.Hour.Milliseconds()}).response.Lease, do)
	})
}

// answer is what a runner says first.
func answer(e *hostile.Exec, isNew bool) {
	e.Send(wire.JSONFrame(wire.KindResponse, 0, channel.Started{New: isNew}))
}

// leaving is a context whose client goes away after a while.
func leaving(t *testing.T, after time.Duration) context.Context {
	ctx, leave := context.WithCancelCause(t.Context())
	time.AfterFunc(after, func() { leave(broker.ErrDetached) })
	return ctx
}

func program(limit int64) *wire.Program {
	return &wire.Program{Language: "shell", TimeoutMS: timeout.Milliseconds(), OutputLimit: limit}
}

// The deadline is kept for whoever is attached when it comes.
func TestTheDeadlineOutlivesAClient(t *testing.T) {
	lie := func(e *hostile.Exec) {
		answer(e, !e.Start.AttachOnly)
		e.AwaitEnd()
	}
	inLiar(t, lie, func(t *testing.T, lease string, do doer) {
		began := time.Now()
		exec := do(leaving(t, time.Second), wire.Request{Op: wire.OpExec, Lease: lease, Program: program(0)}).response.Exec
		n := do(t.Context(), wire.Request{Op: wire.OpAttach, Exec: exec}).ending
		require.Equal(t, wire.ReasonTimeout, n.Reason, n.Message)
		require.Less(t, time.Since(began), timeout+time.Minute)
	})
}

// So is the limit of output, and its bytes are counted on.
func TestTheOutputLimitOutlivesAClient(t *testing.T) {
	lie := func(e *hostile.Exec) {
		answer(e, !e.Start.AttachOnly)
		if e.Start.AttachOnly {
			e.Print(3, "de")
		} else {
			e.Print(0, "abc")
		}
		e.AwaitEnd()
	}
	inLiar(t, lie, func(t *testing.T, lease string, do doer) {
		exec := do(leaving(t, time.Second), wire.Request{Op: wire.OpExec, Lease: lease, Program: program(4)}).response.Exec
		n := do(t.Context(), wire.Request{Op: wire.OpAttach, Exec: exec, Stdout: &wire.Credit{Acked: 3, Limit: 1000}}).ending
		require.Equal(t, wire.ReasonLost, n.Reason)
		require.Contains(t, n.Message, "limit")
	})
}

// Who starts an ID again attaches: what that request says of limits is of no program.
func TestAnIDAgainHasItsFirstTerms(t *testing.T) {
	lie := func(e *hostile.Exec) {
		if e.Start.Program != nil && e.Start.Program.OutputLimit == 0 {
			answer(e, true)
			e.AwaitEnd()
			return
		}
		answer(e, false)
		e.Print(0, "abcdef")
		e.Exit(wire.Ending{Reason: wire.ReasonExited, StdoutBytes: 6})
		e.AwaitEnd()
	}
	inLiar(t, lie, func(t *testing.T, lease string, do doer) {
		do(leaving(t, time.Second), wire.Request{Op: wire.OpExec, Lease: lease, ID: "x", Program: program(0)})
		n := do(t.Context(), wire.Request{Op: wire.OpExec, Lease: lease, ID: "x", Program: program(1)}).ending
		require.Equal(t, wire.ReasonExited, n.Reason, n.Message)
		require.True(t, n.Complete)
	})
}

// A runner that says of a new program that it was there before takes nothing off what the
// broker holds it to, whatever terms it tells.
func TestAProgramIsNotOlderThanItsID(t *testing.T) {
	sayOld := func(e *hostile.Exec) {
		e.Send(wire.JSONFrame(wire.KindResponse, 0, channel.Started{Left: time.Hour, OutputLimit: 1 << 40}))
	}
	overLimit := func(e *hostile.Exec) {
		sayOld(e)
		e.Print(0, "abcde")
		e.AwaitEnd()
	}
	t.Run("limit", func(t *testing.T) {
		inLiar(t, overLimit, func(t *testing.T, lease string, do doer) {
			n := do(t.Context(), wire.Request{Op: wire.OpExec, Lease: lease, Program: program(4)}).ending
			require.Equal(t, wire.ReasonLost, n.Reason)
			require.Contains(t, n.Message, "limit")
		})
	})
	t.Run("deadline", func(t *testing.T) {
		lie := func(e *hostile.Exec) {
			sayOld(e)
			e.AwaitEnd()
		}
		inLiar(t, lie, func(t *testing.T, lease string, do doer) {
			began := time.Now()
			n := do(t.Context(), wire.Request{Op: wire.OpExec, Lease: lease, Program: program(0)}).ending
			require.Equal(t, wire.ReasonTimeout, n.Reason)
			require.Less(t, time.Since(began), timeout+time.Minute)
		})
	})
	t.Run("usage", func(t *testing.T) {
		lie := func(e *hostile.Exec) {
			sayOld(e)
			time.Sleep(time.Second)
			e.Exit(wire.Ending{Reason: wire.ReasonExited, Usage: &wire.Usage{WallMS: 1 << 40}})
			e.AwaitEnd()
		}
		inLiar(t, lie, func(t *testing.T, lease string, do doer) {
			n := do(t.Context(), wire.Request{Op: wire.OpExec, Lease: lease, Program: program(0)}).ending
			require.Equal(t, wire.ReasonExited, n.Reason)
			require.Less(t, n.Usage.WallMS, time.Minute.Milliseconds())
		})
	})
	t.Run("the pool's limit", func(t *testing.T) { // of an ID that the client made
		inLiarOf(t, broker.PoolConfig{OutputLimit: 4}, overLimit, func(t *testing.T, lease string, do doer) {
			n := do(t.Context(), wire.Request{Op: wire.OpExec, Lease: lease, ID: "x", Program: program(0)}).ending
			require.Equal(t, wire.ReasonLost, n.Reason)
			require.Contains(t, n.Message, "limit")
		})
	})
}

// What a ring has discarded is not taken for output that comes after the deadline.
func TestAGapAfterTheDeadlineIsNoOvertime(t *testing.T) {
	lie := func(e *hostile.Exec) {
		answer(e, true)
		time.Sleep(timeout + 7*time.Second)
		e.Print(0, "x")
		time.Sleep(4 * time.Second) // the broker has looked once
		const to = 3 << 20
		e.Send(wire.Discarded{FD: wire.Stdout, To: to}.Frame(0))
		e.Print(to, "y")
		time.Sleep(9 * time.Second) // and again
		e.Exit(wire.Ending{Reason: wire.ReasonTimeout, StdoutBytes: to + 1})
		e.AwaitEnd()
	}
	inLiar(t, lie, func(t *testing.T, lease string, do doer) {
		p := program(0)
		p.Retention = wire.RetainNewest
		n := do(t.Context(), wire.Request{Op: wire.OpExec, Lease: lease, Program: p, Stdout: &wire.Credit{Limit: wire.MaxWindow}}).ending
		require.Equal(t, wire.ReasonTimeout, n.Reason)
		require.Empty(t, n.Message, "the runner said so")
		require.EqualValues(t, 3<<20+1, n.StdoutBytes)
	})
}

package server_test

import (
	"context"
	"errors"
	"io"
	"runtime"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/sandbox-broker/sandbox-broker/broker"
	"github.com/sandbox-broker/sandbox-broker/internal/hostile"
	"github.com/sandbox-broker/sandbox-broker/internal/processtest"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient"
)

// divided gives the pool "hostile" sandboxes whose runner lies, and the others real
// ones.
type divided struct {
	broker.Provider
	liars *hostile.Provider
}

// Take implements broker.Provider.
func (d divided) Take(ctx context.Context, req broker.TakeRequest) (broker.Sandbox, error) {
	if req.Pool == liarPool {
		return d.liars.Take(ctx, req)
	}
	return d.Provider.Take(ctx, req)
}

// List implements broker.Provider.
func (d divided) List(ctx context.Context) ([]broker.Sandbox, error) {
	honest, err := d.Provider.List(ctx)
	liars, _ := d.liars.List(ctx) // never fails
	return append(honest, liars...), err
}

const liarPool = "hostile"

// newDividedSite is a site with honest sandboxes in the pool "test" and lying ones in
// the pool "hostile".
func newDividedSite(t *testing.T, play hostile.Play) *site {
	t.Helper()
	return newQuietSite(t, play, 0)
}

// newQuietSite is newDividedSite with longer between its heartbeats.
func newQuietSite(t *testing.T, play hostile.Play, beat time.Duration) *site {
	t.Helper()
	s := &site{beat: beat, t: t, provider: processtest.New(t), metrics: prometheus.NewRegistry(), log: &syncBuffer{}, liars: hostile.New(t, play)}
	honest, liars := pool(), pool()
	honest.MaxTimeout = 5 * time.Minute
	liars.Name, liars.MaxSandboxes = liarPool, 128
	s.serve(honest, liars)
	return s
}

// witness is a program of another tenant in an honest sandbox.
func (s *site) witness() *hostile.Witness {
	s.t.Helper()
	lease, err := s.client(tokenB).Acquire(deadline(s.t), "test")
	require.NoError(s.t, err)
	ctx := deadline(s.t) // ends after the clean-up below
	s.t.Cleanup(func() { require.NoError(s.t, lease.Release(ctx)) })
	return hostile.NewWitness(s.t, lease)
}

// told is what a client was told of a program that lied.
type told struct {
	stdout string
	ending *sandboxclient.Ending // nil: there was an error instead
	err    error
}

// ask runs a program in a lying sandbox, and checks what holds for every lie.
func (s *site) ask(stdin io.Reader) told {
	s.t.Helper()
	return s.askFor(sandboxclient.Code{Stdin: stdin})
}

// askFor is ask for a program about which more is said.
func (s *site) askFor(code sandboxclient.Code) told {
	s.t.Helper()
	began := time.Now()
	code.Pool, code.Language, code.Source, code.Timeout = liarPool, "shell", "lie", 5*time.Second
	res, err := s.client(tokenA).Run(deadline(s.t), code)
	got := told{stdout: string(res.Stdout), err: err}
	var exit *sandboxclient.ExitError
	switch {
	case errors.As(err, &exit):
		got.ending, got.err = &exit.Ending, nil
	case err == nil:
		got.ending = &res.Ending
	}
	if n := got.ending; n != nil {
		whole := n.StdoutBytes == uint64(len(res.Stdout)) && n.StderrBytes == uint64(len(res.Stderr))
		require.False(s.t, n.Complete && !whole, "complete, but of %d and %d bytes came %d and %d", n.StdoutBytes, n.StderrBytes, len(res.Stdout), len(res.Stderr))
		require.GreaterOrEqual(s.t, n.ExitCode, 0)
		require.LessOrEqual(s.t, n.ExitCode, 255)
		require.Less(s.t, len(n.Message), 2048)
		require.NotContains(s.t, n.Message, "\x1b")
		if u := n.Usage; u != nil {
			require.GreaterOrEqual(s.t, min(u.WallMS, u.UserMS, u.SystemMS, u.MaxRSSBytes), int64(0))
			require.LessOrEqual(s.t, u.WallMS, time.Since(began).Milliseconds())
		}
	}
	eventually(s.t, "the lying sandbox is destroyed", func() bool { return s.liars.Live() == 0 })
	return got
}

// settled waits until no more goroutines run than base.
func settled(t *testing.T, base int) {
	t.Helper()
	eventually(t, "no goroutine is left behind", func() bool { return runtime.NumGoroutine() <= base })
}

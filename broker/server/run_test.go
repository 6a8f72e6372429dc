package server_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"

	"github.com/sandbox-broker/sandbox-broker/broker"
	"github.com/sandbox-broker/sandbox-broker/internal/processtest"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

func TestRunLeavesNothing(t *testing.T) {
	s := newSite(t)
	res, err := s.client(tokenA).Run(deadline(t), sandboxclient.Code{Pool: "test", Language: "shell", Source: "echo out; echo err >&2; exit 3"})
	var exit *sandboxclient.ExitError
	require.ErrorAs(t, err, &exit)
	require.Equal(t, 3, exit.ExitCode())
	require.Equal(t, "out\n", string(res.Stdout))
	require.Equal(t, "err\n", string(res.Stderr))
	require.True(t, res.Ending.Complete)
	eventually(t, "the sandbox is destroyed", func() bool { return s.provider.Live() == 0 })
}

func TestStockIsRefilledAndUsed(t *testing.T) {
	cfg := pool()
	cfg.Stock = 2
	s := newSite(t, cfg)
	eventually(t, "the stock fills", func() bool { return s.provider.Live() == 2 })
	_, err := s.client(tokenA).Run(deadline(t), sandboxclient.Code{Pool: "test", Language: "shell", Source: "true"})
	require.NoError(t, err)
	eventually(t, "a used sandbox is destroyed and replaced", func() bool { return s.inStock() == 2 && s.provider.Live() == 2 && s.provider.Taken() == 3 })
	// One that dies in stock is replaced too.
	s.provider.Any().Die(processtest.OOM)
	eventually(t, "a dead sandbox is replaced", func() bool { return s.provider.Live() == 2 && s.provider.Taken() == 4 })
}

func TestLeaseKeepsItsFiles(t *testing.T) {
	s := newSite(t)
	c := s.client(tokenA)
	lease, err := c.Acquire(deadline(t), "test")
	require.NoError(t, err)
	require.NoError(t, lease.Command("sh", "-c", "echo kept > file").Run(deadline(t)))
	out, err := lease.Command("cat", "file").Output(deadline(t))
	require.NoError(t, err)
	require.Equal(t, "kept\n", string(out))
	require.NoError(t, lease.Release(deadline(t)))
	eventually(t, "the sandbox is destroyed", func() bool { return s.provider.Live() == 0 })
	require.ErrorIs(t, lease.Command("true").Run(deadline(t)), sandboxclient.ErrLeaseExpired)
}

func TestLeaseExpires(t *testing.T) {
	s := newSite(t)
	lease, err := s.client(tokenA).Acquire(deadline(t), "test", sandboxclient.WithTTL(5*time.Second))
	require.NoError(t, err)
	var exit *sandboxclient.ExitError
	require.ErrorAs(t, lease.Command("sleep", "60").Run(deadline(t)), &exit)
	require.Equal(t, wire.ReasonLost, exit.Ending.Reason)
	eventually(t, "the sandbox is destroyed", func() bool { return s.provider.Live() == 0 })
}

func TestQueueIsServedInOrder(t *testing.T) {
	cfg := pool()
	cfg.MaxSandboxes = 1
	s := newSite(t, cfg)
	c := s.client(tokenA)
	first, err := c.Acquire(deadline(t), "test")
	require.NoError(t, err)
	var mu sync.Mutex
	var order []int
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			_, err := c.Run(deadline(t), sandboxclient.Code{Pool: "test", Language: "shell", Source: "true"})
			require.NoError(t, err)
			mu.Lock()
			defer mu.Unlock()
			order = append(order, i)
		})
		eventually(t, "the caller waits", func() bool { return s.gauge("sandbox_broker_queue_length") == float64(i+1) })
	}
	require.NoError(t, first.Release(deadline(t)))
	wg.Wait()
	require.Equal(t, []int{0, 1, 2, 3}, order)
	require.Equal(t, 5, s.provider.Taken())
}

// gauge sums a metric over its labels.
func (s *site) gauge(name string) float64 {
	families, err := s.metrics.Gather()
	require.NoError(s.t, err)
	sum := 0.0
	for _, f := range families {
		if f.GetName() == name {
			for _, m := range f.GetMetric() {
				sum += m.GetGauge().GetValue()
			}
		}
	}
	return sum
}

func TestFullQueueAndQueueTimeout(t *testing.T) {
	cfg := pool()
	cfg.MaxSandboxes, cfg.QueueLength, cfg.QueueTimeout = 1, 1, 3*time.Second
	s := newSite(t, cfg)
	c := s.client(tokenA)
	lease, err := c.Acquire(deadline(t), "test")
	require.NoError(t, err)
	waiting := make(chan error, 1)
	go func() {
		_, err := c.Acquire(deadline(t), "test")
		waiting <- err
	}()
	eventually(t, "the caller waits", func() bool { return s.gauge("sandbox_broker_queue_length") == 1 })
	_, err = c.Acquire(deadline(t), "test")
	require.ErrorIs(t, err, sandboxclient.ErrExhausted)
	require.Positive(t, wire.AsError(err).RetryAfter())
	require.Equal(t, "queue_full", wire.AsError(err).Reason)
	err = <-waiting
	require.ErrorIs(t, err, sandboxclient.ErrExhausted)
	require.Equal(t, "queue_timeout", wire.AsError(err).Reason)
	require.NoError(t, lease.Release(deadline(t)))
}

func TestCancelledCallersSandboxGoesToTheNext(t *testing.T) {
	cfg := pool()
	cfg.MaxSandboxes = 1
	s := newSite(t, cfg)
	release := s.provider.HoldTakes()
	c := s.client(tokenA)
	ctx, cancel := context.WithCancel(deadline(t))
	gaveUp := make(chan error, 1)
	go func() {
		_, err := c.Acquire(ctx, "test")
		gaveUp <- err
	}()
	eventually(t, "the caller waits", func() bool { return s.gauge("sandbox_broker_queue_length") == 1 })
	cancel()
	require.ErrorIs(t, <-gaveUp, context.Canceled)
	eventually(t, "the caller is gone", func() bool { return s.gauge("sandbox_broker_queue_length") == 0 })
	served := make(chan error, 1)
	go func() {
		_, err := c.Run(deadline(t), sandboxclient.Code{Pool: "test", Language: "shell", Source: "true"})
		served <- err
	}()
	eventually(t, "the next caller waits", func() bool { return s.gauge("sandbox_broker_queue_length") == 1 })
	release()
	require.NoError(t, <-served)
	require.Equal(t, 1, s.provider.Taken(), "the take that was under way served the next caller")
}

func TestFailedTakes(t *testing.T) {
	s := newSite(t)
	c := s.client(tokenA)
	code := sandboxclient.Code{Pool: "test", Language: "shell", Source: "true"}
	t.Run("what waiting cannot mend is told with its reason", func(t *testing.T) {
		s.provider.FailTakes(&wire.Error{Code: wire.CodeNotReady, Reason: "image_error", Message: "no such image"})
		_, err := c.Run(deadline(t), code)
		require.ErrorIs(t, err, sandboxclient.ErrNotReady)
		require.Equal(t, "image_error", wire.AsError(err).Reason)
	})
	t.Run("the platform's own failures stay in the log", func(t *testing.T) {
		s.provider.FailTakes(errors.New("dial tcp 10.0.0.1:443: secret detail"))
		_, err := c.Run(deadline(t), code)
		require.ErrorIs(t, err, sandboxclient.ErrUnavailable)
		require.NotContains(t, err.Error(), "secret detail")
		require.Contains(t, s.log.String(), "secret detail")
	})
	s.provider.FailTakes(nil)
	_, err := c.Run(deadline(t), code)
	require.NoError(t, err, "the pool recovers")
}

func TestDetachedRunIsEndedAfterItsGrace(t *testing.T) {
	s := newSite(t)
	conn := s.dial(tokenA)
	conn.request(1, shell(), "echo started; sleep 60")
	conn.until(wire.KindStdout)
	began := time.Now()
	_ = conn.Close()
	eventually(t, "the sandbox is destroyed", func() bool { return s.provider.Live() == 0 })
	require.GreaterOrEqual(t, time.Since(began), pool().DetachGrace, "not before the grace is over")
}

func TestAttachWithinTheGrace(t *testing.T) {
	cfg := pool()
	cfg.DetachGrace = 10 * time.Second
	s := newSite(t, cfg)
	conn := s.dial(tokenA)
	conn.request(1, shell(), "echo one; while [ ! -e go ]; do sleep 0.02; done; echo two")
	var res wire.Response
	require.NoError(t, wire.Unmarshal(wire.KindResponse, conn.until(wire.KindResponse).Payload, &res))
	conn.until(wire.KindStdout)
	_ = conn.Close()

	other := s.dial(tokenB)
	other.request(1, wire.Request{Op: wire.OpAttach, Exec: res.Exec}, "")
	var e wire.Error
	require.NoError(t, wire.Unmarshal(wire.KindError, other.until(wire.KindError).Payload, &e))
	require.Equal(t, wire.CodeNotFound, e.Code, "another tenant learns nothing")

	again := s.dial(tokenA)
	again.request(1, wire.Request{Op: wire.OpAttach, Exec: res.Exec, Stdout: &wire.Credit{Acked: 0, Limit: 1000}}, "")
	f := again.until(wire.KindStdout)
	require.Equal(t, "one\n", string(f.Payload), "nothing was acknowledged, so all of it comes again")
	require.NoError(t, s.provider.Any().Touch("go"))
	f = again.until(wire.KindStdout)
	require.Equal(t, "two\n", string(f.Payload))
	require.EqualValues(t, 4, f.Offset)
	again.until(wire.KindExit)
	again.send(wire.Frame{Kind: wire.KindDone, Stream: 1})
	eventually(t, "the sandbox is destroyed", func() bool { return s.provider.Live() == 0 })
}

func TestChannelCutLosesNothing(t *testing.T) {
	s := newSite(t)
	r, w := io.Pipe()
	t.Cleanup(func() { _ = w.Close() }) // ends the client's last read
	out := make(chan string, 1)
	go func() {
		res, err := s.client(tokenA).Run(deadline(t), sandboxclient.Code{
			Pool: "test", Language: "shell", Source: `echo one; read x; echo "got $x"; seq 1 20000`, Stdin: r,
		})
		require.NoError(t, err)
		out <- string(res.Stdout)
	}()
	eventually(t, "the run has a sandbox", func() bool { return s.provider.Live() == 1 })
	sb := s.provider.Any()
	eventually(t, "the program runs", func() bool { return sb.Recorded() != nil })
	for range 3 {
		sb.Cut()
	}
	_, err := w.Write([]byte("input\n"))
	require.NoError(t, err)
	sb.Cut()
	got := <-out
	require.True(t, strings.HasPrefix(got, "one\ngot input\n1\n2\n"), got[:min(len(got), 40)])
	require.True(t, strings.HasSuffix(got, "\n20000\n"))
	require.Equal(t, 20002, strings.Count(got, "\n"))
}

func TestDeathIsReportedAsWhatItWas(t *testing.T) {
	for name, tc := range map[string]struct {
		kill func(*processtest.Sandbox)
		want wire.Ending
	}{
		"oom": {func(s *processtest.Sandbox) { s.Die(processtest.OOM) }, wire.Ending{Reason: wire.ReasonOOM}},
		"evicted": {func(s *processtest.Sandbox) {
			s.Die(broker.Fate{Reason: wire.ReasonLost, Cause: wire.CauseEvicted})
		}, wire.Ending{Reason: wire.ReasonLost, Cause: wire.CauseEvicted}},
	} {
		t.Run(name, func(t *testing.T) {
			s := newSite(t)
			conn := s.dial(tokenA)
			conn.request(1, shell(), "echo before; sleep 60")
			conn.until(wire.KindStdout)
			tc.kill(s.provider.Any())
			var n wire.Ending
			require.NoError(t, wire.Unmarshal(wire.KindExit, conn.until(wire.KindExit).Payload, &n))
			require.Equal(t, tc.want.Reason, n.Reason)
			require.Equal(t, tc.want.Cause, n.Cause)
			require.False(t, n.Complete)
			require.EqualValues(t, 7, n.StdoutBytes)
			eventually(t, "nothing is left", func() bool { return s.gauge("sandbox_broker_sandboxes") == 0 })
			require.Equal(t, 1, s.provider.Taken(), "nothing runs twice")
		})
	}
}

func TestBlankReplacementRunsNothing(t *testing.T) {
	s := newSite(t)
	conn := s.dial(tokenA)
	conn.request(1, shell(), "echo before; sleep 60")
	conn.until(wire.KindStdout)
	sb := s.provider.Any()
	require.NoError(t, sb.Replace())
	sb.Cut()
	var n wire.Ending
	require.NoError(t, wire.Unmarshal(wire.KindExit, conn.until(wire.KindExit).Payload, &n))
	require.Equal(t, wire.ReasonLost, n.Reason)
	require.Equal(t, wire.CauseDeleted, n.Cause)
	eventually(t, "the replacement goes too", func() bool { return s.provider.Live() == 0 })
}

func TestEndIsTriedUntilItWorks(t *testing.T) {
	s := newSite(t)
	lease, err := s.client(tokenA).Acquire(deadline(t), "test")
	require.NoError(t, err)
	sb := s.provider.Any()
	sb.FailEnds(errors.New("the API server is away"))
	require.NoError(t, lease.Release(deadline(t)))
	eventually(t, "an attempt failed", func() bool { return strings.Contains(s.log.String(), "could not be ended yet") })
	require.Equal(t, 1, s.provider.Live())
	sb.FailEnds(nil)
	eventually(t, "the sandbox is destroyed", func() bool { return s.provider.Live() == 0 })
}

func TestNextBrokerTakesOver(t *testing.T) {
	cfg := pool()
	cfg.DetachGrace, cfg.Stock = 10*time.Second, 1
	s := newSite(t, cfg)
	lease, err := s.client(tokenA).Acquire(deadline(t), "test")
	require.NoError(t, err)
	require.NoError(t, lease.Command("sh", "-c", "echo kept > file").Run(deadline(t)))
	conn := s.dial(tokenA)
	conn.request(1, shell(), "echo one; while [ ! -e go ]; do sleep 0.02; done; echo two")
	var res wire.Response
	require.NoError(t, wire.Unmarshal(wire.KindResponse, conn.until(wire.KindResponse).Payload, &res))
	conn.until(wire.KindStdout)
	eventually(t, "both leases are recorded", func() bool { return s.provider.RecordedCount() == 2 })

	s.close()
	require.Equal(t, 2, s.provider.Live(), "the stock is drained, leases stay")
	s.metrics = prometheus.NewRegistry()
	s.serve(cfg)

	c := s.client(tokenA)
	out, err := c.Lease(lease.Handle()).Command("cat", "file").Output(deadline(t))
	require.NoError(t, err)
	require.Equal(t, "kept\n", string(out))
	again := s.dial(tokenA)
	again.request(1, wire.Request{Op: wire.OpAttach, Exec: res.Exec, Stdout: &wire.Credit{Acked: 4, Limit: 1000}}, "")
	require.NoError(t, s.provider.TouchAll("go"))
	require.Equal(t, "two\n", string(again.until(wire.KindStdout).Payload))
	again.until(wire.KindExit)
}

// A confirmed exec is forgotten by the runner: a lease is good for more execs
// than it may hold at once (64).
func TestLeaseIsGoodForManyExecs(t *testing.T) {
	s := newSite(t)
	ctx := deadline(t)
	lease, err := s.client(tokenA).Acquire(ctx, "test")
	require.NoError(t, err)
	for i := range 150 {
		require.NoError(t, lease.Command("true").Run(ctx), "exec %d", i)
	}
	require.NoError(t, lease.Release(ctx))
}

func TestTheOnlyPoolNeedNotBeNamed(t *testing.T) {
	mine, others := pool(), pool()
	others.Name, others.Tenants = "others", []string{"b"}
	s := newSite(t, mine, others)
	res, err := s.client(tokenA).Run(deadline(t), sandboxclient.Code{Language: "shell", Source: "echo hi"})
	require.NoError(t, err)
	require.Equal(t, "hi\n", string(res.Stdout))
	_, err = s.client(tokenB).Run(deadline(t), sandboxclient.Code{Language: "shell", Source: "echo hi"})
	require.ErrorIs(t, err, sandboxclient.ErrInvalid)
	require.ErrorContains(t, err, "[others test]")
}

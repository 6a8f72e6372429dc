package server_test

import (
	"bytes"
	"errors"
	"fmt"
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

// newReplicas are two brokers that share a provider. The first one has filled its stock
// before the second starts.
func newReplicas(t *testing.T, cfg broker.PoolConfig) (a, b *site) {
	t.Helper()
	p := processtest.New(t)
	for _, s := range []**site{&a, &b} {
		*s = &site{t: t, provider: p, replica: p.Replica(), metrics: prometheus.NewRegistry(), log: &syncBuffer{}}
		(*s).serve(cfg)
		eventually(t, "the first has the stock", func() bool { return a.inStock() == cfg.Stock })
	}
	return a, b
}

// owned is how many sandboxes a broker counts.
func (s *site) owned() float64 { return s.gauge("sandbox_broker_sandboxes") }

// inStock is what its pool tells.
func (s *site) inStock() int { return s.broker.Pools("a")[0].InStock }

func TestAnotherReplicaServesALease(t *testing.T) {
	a, b := newReplicas(t, pool())
	lease, err := a.client(tokenA).Acquire(deadline(t), "test")
	require.NoError(t, err)
	_, err = lease.Command("sh", "-c", "echo hi >file").Output(deadline(t))
	require.NoError(t, err)
	eventually(t, "the lease is recorded", func() bool { return a.provider.RecordedCount() == 1 })

	there := b.client(tokenA).Lease(lease.Handle())
	out, err := there.Command("cat", "file").Output(deadline(t))
	require.NoError(t, err)
	require.Equal(t, "hi\n", string(out))
	require.InDelta(t, 1, a.owned(), 0)
	require.InDelta(t, 0, b.owned(), 0, "a guest is counted once")
	_, err = b.client(tokenB).Lease(lease.Handle()).Command("true").Output(deadline(t))
	require.ErrorIs(t, err, sandboxclient.ErrNotFound)

	require.NoError(t, there.Release(deadline(t)))
	eventually(t, "the sandbox is gone", func() bool { return a.provider.Live() == 0 })
}

// Who has acquired a lease may use it through another replica at once: the record, from
// which that one knows it, is written behind the client's back.
func TestAnotherReplicaWaitsForTheRecord(t *testing.T) {
	a, b := newReplicas(t, pool())
	release := a.provider.HoldRecords()
	defer release()
	lease, err := a.client(tokenA).Acquire(deadline(t), "test")
	require.NoError(t, err)
	type answer struct {
		out []byte
		err error
	}
	came := make(chan answer, 1)
	go func() {
		out, err := b.client(tokenA).Lease(lease.Handle()).Command("echo", "hi").Output(deadline(t))
		came <- answer{out, err}
	}()
	select {
	case got := <-came:
		t.Fatalf("nobody can know the lease yet: %v", got.err)
	case <-time.After(300 * time.Millisecond): // long enough for an answer that must not come
	}
	release()
	got := <-came
	require.NoError(t, got.err)
	require.Equal(t, "hi\n", string(got.out))
}

// What its broker could not share is not expired: that broker has it.
func TestALeaseThatIsNotSharedIsUnavailable(t *testing.T) {
	t.Parallel()
	a, b := newReplicas(t, pool())
	defer a.provider.HoldRecords()()
	lease, err := a.client(tokenA).Acquire(deadline(t), "test")
	require.NoError(t, err)
	_, err = b.client(tokenA).Lease(lease.Handle()).Command("true").Output(deadline(t))
	require.ErrorIs(t, err, sandboxclient.ErrUnavailable)
	_, err = lease.Command("true").Output(deadline(t))
	require.NoError(t, err)
}

// A client that comes back to another replica takes its run with it: the first one
// must not end it for want of a client.
func TestARunMovesWithItsClient(t *testing.T) {
	cfg := pool()
	cfg.DetachGrace = 2 * time.Second
	a, b := newReplicas(t, cfg)
	first, second := a.dial(tokenA), b.dial(tokenA)
	res := first.startRun("echo begun; while [ ! -e go ]; do sleep 0.05; done; echo done")
	eventually(t, "the run is recorded", func() bool { return a.provider.RecordedCount() == 1 })
	require.NoError(t, first.Close())

	second.request(1, wire.Request{Op: wire.OpAttach, Exec: res.Exec, Stdout: &wire.Credit{Acked: 6, Limit: 100}}, "")
	second.until(wire.KindResponse)
	eventually(t, "the first replica has let go", func() bool { return a.owned() == 0 })
	require.InDelta(t, 1, b.owned(), 0)
	time.Sleep(2 * cfg.DetachGrace) // what must not happen would happen now
	require.NoError(t, a.provider.TouchAll("go"))
	require.Equal(t, "done\n", string(second.until(wire.KindStdout).Payload))
	second.until(wire.KindExit)
	second.send(wire.Frame{Stream: 1, Kind: wire.KindDone})
	eventually(t, "the sandbox is gone", func() bool { return a.provider.Live() == 0 })
}

func TestTheStockOfASilentReplicaIsTakenOver(t *testing.T) {
	cfg := pool()
	cfg.MaxSandboxes, cfg.Stock = 2, 2
	a, b := newReplicas(t, cfg)
	require.Zero(t, b.inStock(), "there is no room for another one")
	a.replica.Silence(false)
	eventually(t, "the second has it", func() bool { return b.inStock() == 2 })
	require.Zero(t, a.inStock())
	require.Equal(t, 2, a.provider.Taken())
	require.Equal(t, 2, a.provider.Live())
	_, err := b.client(tokenA).Acquire(deadline(t), "test")
	require.NoError(t, err)
}

// A replica that was cut off when it wanted to end a sandbox, and was taken for dead, does
// not end it later: another one has given it to somebody since.
func TestWhatAnotherReplicaTookOverIsNotEnded(t *testing.T) {
	cfg := pool()
	cfg.MaxSandboxes, cfg.Stock = 1, 1
	a, b := newReplicas(t, cfg)
	sb := a.provider.Any()
	sb.FailEnds(errors.New("the API server is away"))
	sb.Cut()
	eventually(t, "an attempt failed", func() bool { return strings.Contains(a.log.String(), "could not be ended yet") })
	a.replica.Silence(false)
	lease, err := b.client(tokenA).Acquire(deadline(t), "test")
	require.NoError(t, err)
	sb.FailEnds(nil)
	eventually(t, "the first has given it up", func() bool { return strings.Contains(a.log.String(), "another replica has taken it over") })
	out, err := lease.Command("echo", "alive").Output(deadline(t))
	require.NoError(t, err)
	require.Equal(t, "alive\n", string(out))
	require.Equal(t, 1, a.provider.Live())

	// Whoever holds the lease may still end it from there.
	eventually(t, "the lease is recorded", func() bool { return a.provider.RecordedCount() == 1 })
	require.NoError(t, a.client(tokenA).Lease(lease.Handle()).Release(deadline(t)))
	eventually(t, "the sandbox is gone", func() bool { return a.provider.Live() == 0 })
}

// A lease that was released at a replica which was cut off has ended, also if another one
// has taken it over before the sandbox could be.
func TestAReleasedLeaseEndsWhereverItIs(t *testing.T) {
	a, b := newReplicas(t, pool())
	lease, err := a.client(tokenA).Acquire(deadline(t), "test")
	require.NoError(t, err)
	eventually(t, "the lease is recorded", func() bool { return a.provider.RecordedCount() == 1 })
	sb := a.provider.Any()
	sb.FailEnds(errors.New("the API server is away"))
	require.NoError(t, lease.Release(deadline(t)))
	eventually(t, "an attempt failed", func() bool { return strings.Contains(a.log.String(), "could not be ended yet") })
	a.replica.Silence(false)
	eventually(t, "the second has it", func() bool { return b.owned() == 1 })
	sb.FailEnds(nil)
	eventually(t, "the sandbox is gone", func() bool { return a.provider.Live() == 0 })
}

// Two brokers hand out the same stock, since the first one's clock stood still and it
// does not know that it was taken for dead. No sandbox runs the programs of two.
func TestTwoBrokersFightOverOneStock(t *testing.T) {
	const sandboxes = 8
	cfg := pool()
	cfg.MaxSandboxes, cfg.Stock, cfg.QueueTimeout = sandboxes, sandboxes, time.Second
	a, b := newReplicas(t, cfg)
	a.replica.Silence(true)
	eventually(t, "the second has it too", func() bool { return b.inStock() == sandboxes })
	require.Equal(t, sandboxes, a.inStock())

	ran := map[string]int{} // by the workspace
	var mu sync.Mutex
	var callers sync.WaitGroup
	for i := range 2 * sandboxes {
		s := []*site{a, b}[i%2]
		callers.Go(func() {
			lease, err := s.client(tokenA).Acquire(deadline(t), "test")
			if err != nil {
				return
			}
			out, err := lease.Command("sh", "-c", fmt.Sprintf("echo %d >>who; cat who; pwd", i)).Output(deadline(t))
			if err != nil {
				return
			}
			who, dir, _ := bytes.Cut(out, []byte("\n"))
			mu.Lock()
			defer mu.Unlock()
			ran[string(dir)]++
			if string(who) != fmt.Sprint(i) {
				t.Errorf("caller %d found the file of caller %s", i, who)
			}
		})
	}
	callers.Wait()
	require.GreaterOrEqual(t, len(ran), sandboxes, "each sandbox served a lease")
	for dir, n := range ran {
		require.Equal(t, 1, n, dir)
	}
}

// The owner dies after a program has started and before its lease is recorded: the
// lease is lost, the sandbox is not leaked, and the program runs no second time.
func TestACrashBeforeTheRecordLosesTheLease(t *testing.T) {
	cfg := pool()
	cfg.MaxSandboxes, cfg.Stock = 1, 1
	a, b := newReplicas(t, cfg)
	release := a.provider.HoldRecords()
	defer release()
	lease, err := a.client(tokenA).Acquire(deadline(t), "test")
	require.NoError(t, err)
	_, err = lease.Command("true").Output(deadline(t))
	require.NoError(t, err)
	a.replica.Silence(true)
	eventually(t, "the second has a sandbox of its own", func() bool { return b.inStock() == 1 })
	require.Equal(t, 2, a.provider.Taken(), "the used one was not taken into the stock")
	require.Equal(t, 1, a.provider.Live())
	_, err = b.client(tokenA).Lease(lease.Handle()).Command("true").Output(deadline(t))
	require.ErrorIs(t, err, sandboxclient.ErrLeaseExpired)
}

func TestARunOfASilentReplicaGetsItsGrace(t *testing.T) {
	a, b := newReplicas(t, pool())
	first := a.dial(tokenA)
	res := first.startRun("echo begun; sleep 60")
	eventually(t, "the run is recorded", func() bool { return a.provider.RecordedCount() == 1 })
	a.replica.Silence(false)
	eventually(t, "nobody came, so the second ends it", func() bool { return a.provider.Live() == 0 })
	require.InDelta(t, 0, a.owned(), 0)
	second := b.dial(tokenA)
	second.request(1, wire.Request{Op: wire.OpAttach, Exec: res.Exec, Stdout: &wire.Credit{Limit: 1}}, "")
	var n wire.Ending
	require.NoError(t, wire.Unmarshal(wire.KindExit, second.until(wire.KindExit).Payload, &n))
	require.Equal(t, wire.ReasonCanceled, n.Reason)
}

package broker

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// inBubble runs a test of a pool whose provider is a puppet. Its clock is the bubble's.
func inBubble(t *testing.T, cfg PoolConfig, pp *puppet, test func(t *testing.T, p *pool)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		pp.live = map[string]*puppetSandbox{}
		life, end := context.WithCancel(context.Background())
		p := pp.pool(life, cfg)
		defer p.close()
		defer end()
		p.start()
		synctest.Wait()
		test(t, p)
	})
}

// decideAll answers every take under way.
func (p *puppet) decideAll(err error) (n int) {
	synctest.Wait()
	for ; p.asked() > 0; n++ {
		p.decide(err)
	}
	synctest.Wait()
	return n
}

// asked is how many takes are under way.
func (p *puppet) asked() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.takes)
}

// stocked are the names of the sandboxes in stock.
func stocked(p *pool) (names []string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, m := range p.stock {
		names = append(names, m.sb.ID().Name)
	}
	return names
}

func ofOne() PoolConfig {
	return PoolConfig{Name: "p", MaxSandboxes: 1, Stock: 1, ReadyTimeout: time.Hour, Spares: []string{}}
}

// A sandbox in stock stays there for as long as its end can be moved before it comes.
func TestStockIsRenewedBeforeItsEnd(t *testing.T) {
	var mu sync.Mutex // guards what follows
	end := stockLife  // since the start
	var began time.Time
	moves := 0
	pp := &puppet{}
	pp.extend = func(until time.Time) error {
		mu.Lock()
		defer mu.Unlock()
		moves++
		if moves%3 == 1 {
			return errors.New("the API server is away")
		}
		require.Less(t, time.Since(began), end-stockRest)
		end = until.Sub(began)
		return nil
	}
	inBubble(t, ofOne(), pp, func(t *testing.T, p *pool) {
		mu.Lock()
		began = time.Now()
		mu.Unlock()
		pp.decideAll(nil)
		for range 6 {
			time.Sleep(stockLife)
			require.Equal(t, []string{"s1"}, stocked(p))
		}
		mu.Lock()
		defer mu.Unlock()
		require.Greater(t, moves, 6)
	})
}

// One whose end cannot be moved is replaced before it comes.
func TestStockThatCannotBeRenewedIsReplaced(t *testing.T) {
	pp := &puppet{extend: func(time.Time) error { return errors.New("the API server is away") }}
	inBubble(t, ofOne(), pp, func(t *testing.T, p *pool) {
		pp.decideAll(nil)
		time.Sleep(stockLife - stockRest - renewAgain)
		require.Equal(t, []string{"s1"}, stocked(p), "nothing is thrown away early")
		time.Sleep(2 * renewAgain)
		pp.decideAll(nil)
		require.Equal(t, []string{"s2"}, stocked(p))
		require.Len(t, pp.live, 1)
	})
}

// Nobody knows how much is left of one that another replica had: it is renewed at once.
func TestStockOfAnotherReplicaIsRenewedAtOnce(t *testing.T) {
	moved := 0
	pp := &puppet{extend: func(time.Time) error { moved++; return nil }}
	inBubble(t, ofOne(), pp, func(t *testing.T, p *pool) {
		pp.decideAll(nil)
		m, err := p.acquire(t.Context())
		require.NoError(t, err)
		require.Zero(t, moved)
		m.until = time.Time{}
		p.giveBack(m)
		synctest.Wait()
		require.Equal(t, 1, moved)
	})
}

// Takes that fail beside one another are one failure: the pauses double from one round
// to the next, up to a bound, and a success begins anew.
func TestTheFillerBacksOff(t *testing.T) {
	cfg := ofOne()
	cfg.MaxSandboxes, cfg.Stock, cfg.Refills = 4, 4, 4
	pp := &puppet{}
	inBubble(t, cfg, pp, func(t *testing.T, _ *pool) {
		pause := takeBackoffMin
		for range 8 {
			require.Equal(t, 4, pp.decideAll(errors.New("no")))
			time.Sleep(pause - time.Millisecond)
			synctest.Wait()
			require.Zero(t, pp.asked())
			time.Sleep(2 * time.Millisecond)
			pause = min(2*pause, takeBackoffMax)
		}
		synctest.Wait()
		pp.decide(nil)
		require.Equal(t, 3, pp.decideAll(errors.New("no")))
		time.Sleep(takeBackoffMin + time.Millisecond)
		synctest.Wait()
		require.Equal(t, 3, pp.asked())
	})
}

// The stock is filled by no more takes at once than the configuration says, and a pool
// that starts nothing cold asks for no more than the warm pool has.
func TestRefillsAreBounded(t *testing.T) {
	cfg := ofOne()
	cfg.MaxSandboxes, cfg.Stock, cfg.Refills = 8, 8, 3
	pp := &puppet{}
	inBubble(t, cfg, pp, func(t *testing.T, p *pool) {
		for len(stocked(p)) < cfg.Stock {
			require.LessOrEqual(t, pp.asked(), cfg.Refills)
			require.Positive(t, pp.asked())
			pp.decide(nil)
			synctest.Wait()
		}
	})
}

// warmPuppet knows how many sandboxes the warm pool has.
type warmPuppet struct {
	*puppet
	warm atomic.Int64
}

func (p *warmPuppet) Warm(string) int { return int(p.warm.Load()) }

func TestAColdQueueWaitsForTheWarmPool(t *testing.T) {
	cfg := ofOne()
	cfg.MaxSandboxes, cfg.Stock, cfg.Refills, cfg.Cold = 8, 8, 8, ColdQueue
	warm := &warmPuppet{puppet: &puppet{}}
	warm.as = warm
	warm.warm.Store(2)
	inBubble(t, cfg, warm.puppet, func(t *testing.T, p *pool) {
		require.Equal(t, 2, warm.asked())
		warm.warm.Store(0)
		require.Equal(t, 2, warm.decideAll(errors.New("no")))
		time.Sleep(takeBackoffMin)
		synctest.Wait()
		require.Equal(t, 1, warm.asked(), "one waits for what the warm pool makes next")
		warm.warm.Store(6)
		p.start()
		synctest.Wait()
		require.Equal(t, 6, warm.asked())
	})
}

// What the spares cannot do, such as a module that cannot be imported, is told of the
// pool, which serves without it.
func TestProblemsOfSparesAreTheWarningsOfThePool(t *testing.T) {
	cfg := ofOne()
	cfg.Spares, cfg.Preload = []string{"python"}, map[string][]string{"python": {"nothing"}}
	pp := &puppet{says: `{"languages":["python"],"spares":{"python":{"problems":["preload: no module named nothing"]}}}`}
	inBubble(t, cfg, pp, func(t *testing.T, p *pool) {
		pp.decideAll(nil)
		require.Equal(t, []string{"spare python: preload: no module named nothing"}, p.describe().Warnings)
		require.Equal(t, 1, p.describe().InStock)
		m, err := p.acquire(t.Context())
		require.NoError(t, err)
		require.True(t, p.isPrepared(m))
		m.ch.Close()
		p.release(m.sb)
	})
}

// company is a roster of so many replicas.
type company struct {
	alone
	n int
}

func (c *company) Replicas() int { return c.n }

// A stock that is too large since another replica has come shrinks, the oldest first.
func TestAnotherReplicaGetsItsShareOfTheRoom(t *testing.T) {
	cfg := ofOne()
	cfg.MaxSandboxes, cfg.Stock = 4, 4
	pp := &puppet{}
	inBubble(t, cfg, pp, func(t *testing.T, p *pool) {
		for range cfg.Stock {
			pp.decideAll(nil)
		}
		had := stocked(p)
		require.Len(t, had, 4)
		p.mu.Lock()
		p.roster = &company{n: 2}
		p.mu.Unlock()
		for range 5 {
			p.start()
			synctest.Wait()
		}
		require.Equal(t, had[2:], stocked(p))
		require.Zero(t, pp.asked())
		require.Equal(t, 2, len(pp.live))
		require.False(t, slices.Contains(stocked(p), had[0]))
	})
}

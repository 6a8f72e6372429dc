package bench

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/sandbox-broker/sandbox-broker/broker/agentsandbox"
)

// loadPause lies between two looks at how many sandboxes are warm.
const loadPause = 10 * time.Millisecond

// warmUp is the part of a load that is not counted: what was ready before it
// began is used up by then.
const warmUp = 0.25

// counter counts what ends within a time.
type counter struct {
	from, to time.Time

	mu   sync.Mutex // guards the rest
	n    int
	errs []error
}

func newCounter(lasting time.Duration) *counter {
	now := time.Now()
	return &counter{from: now.Add(time.Duration(warmUp * float64(lasting))), to: now.Add(lasting)}
}

// add counts one that ended just now.
func (c *counter) add(err error) {
	now := time.Now()
	c.mu.Lock()
	defer c.mu.Unlock()
	switch {
	case err != nil:
		c.errs = append(c.errs, err)
	case !now.Before(c.from) && now.Before(c.to):
		c.n++
	}
}

// perSecond is how many ended in a second.
func (c *counter) perSecond() float64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return float64(c.n) / c.to.Sub(c.from).Seconds()
}

// RefillRate measures how many sandboxes a second the warm pool itself can give:
// they are claimed as fast as they become ready, no more at once than are, and
// released without running anything. Claims that failed are told to note.
func (c *Cluster) RefillRate(ctx context.Context, p *agentsandbox.Provider, lasting time.Duration, note func(error)) (float64, error) {
	// Deadline of the takes: what is under way at the end may still come.
	takes, cancel := context.WithTimeout(ctx, lasting+settleTimeout)
	defer cancel()
	count := newCounter(lasting)
	done := make(chan struct{}, max(c.replicas, 1))
	pause := time.NewTicker(loadPause)
	defer pause.Stop()
	var going sync.WaitGroup
	defer going.Wait()
	taking := 0
	for time.Now().Before(count.to) {
		for taking < min(cap(done), max(1, p.Warm(c.warmPool))) {
			taking++
			going.Go(func() {
				count.add(c.takeAndRelease(takes, p))
				done <- struct{}{}
			})
		}
		select {
		case <-done:
			taking--
		case <-pause.C:
		case <-ctx.Done():
			return 0, fmt.Errorf("bench: measuring the pool's refill: %w", ctx.Err())
		}
	}
	going.Wait()
	for _, err := range count.errs[:min(len(count.errs), maxFailures)] {
		note(err)
	}
	return count.perSecond(), nil
}

func (c *Cluster) takeAndRelease(ctx context.Context, p *agentsandbox.Provider) error {
	sandbox, err := c.take(ctx, p)
	if err != nil {
		return fmt.Errorf("bench: claiming a sandbox: %w", err)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	return sandbox.End(ctx)
}

// LoadResult is what a load brought.
type LoadResult struct {
	PerSecond float64 // runs that ended, after the warm-up
	Warm      float64 // share of the runs that were served from stock
	Runs      Series  // each from its arrival on
	Queue     Series  // how long each waited until the broker had a sandbox
	Dropped   int     // arrivals that were not made: too many went on
	Errs      []error
}

// Load makes runs at a rate for a time, as callers do that do not wait for each
// other.
func (b *Broker) Load(ctx context.Context, perSecond float64, lasting, callTimeout time.Duration) LoadResult {
	count := newCounter(lasting)
	var mu sync.Mutex // guards the result
	var res LoadResult
	warm := 0
	made := pace(ctx, perSecond, lasting, func() {
		one, cancel := context.WithTimeout(ctx, callTimeout)
		defer cancel()
		sample, waited, err := b.run(one, b.Pool)
		count.add(err)
		mu.Lock()
		defer mu.Unlock()
		if err != nil {
			res.Runs.Failed++
			return
		}
		if waited <= servedWarm {
			warm++
		}
		res.Runs.Samples = append(res.Runs.Samples, sample)
		res.Queue.Samples = append(res.Queue.Samples, Sample{Done: waited})
	})
	res.PerSecond, res.Dropped, res.Errs = count.perSecond(), made.Dropped, count.errs
	if n := len(res.Runs.Samples); n > 0 {
		res.Warm = float64(warm) / float64(n)
	}
	return res
}

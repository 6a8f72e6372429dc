package bench

import (
	"context"
	"errors"
	"fmt"
	"time"
)

const (
	// CallTimeout bounds one call of any kind.
	CallTimeout = 2 * time.Minute
	// maxFailures is how many calls of one way may fail in a row before it is given
	// up: each may take up to CallTimeout.
	maxFailures = 3
)

// way is one way to make a call, and how it is measured.
type way struct {
	series Series
	count  int
	call   func(context.Context) (Sample, error)
	// rest prepares each call; it is not part of the sample. nil: nothing is to do.
	rest func(context.Context) error
	// cost is how long a call with its rest is expected to take, for the progress.
	cost time.Duration

	failures int // in a row
}

// takeTurns makes all calls, each way's share in every turn, so that all of them
// see the same weather. begin starts each turn.
func takeTurns(ctx context.Context, turns int, begin func(context.Context) error, ways []*way, p *Progress) error {
	for turn := range turns {
		if err := begin(ctx); err != nil {
			return fmt.Errorf("bench: beginning turn %d: %w", turn+1, err)
		}
		for _, w := range ways {
			p.Working(w.series.Name)
			for range share(w.count, turn, turns) {
				if err := w.once(ctx, p); err != nil {
					return err
				}
				p.Add(w.cost)
			}
		}
	}
	return nil
}

// share is how many of count calls belong to one of the turns.
func share(count, turn, turns int) int {
	return count*(turn+1)/turns - count*turn/turns
}

// once makes one call. A failure is counted and told; what is returned ends the
// benchmark.
func (w *way) once(ctx context.Context, p *Progress) error {
	if w.failures == maxFailures {
		return nil
	}
	if w.rest != nil {
		if err := w.rest(ctx); err != nil {
			return err
		}
	}
	one, cancel := context.WithTimeout(ctx, CallTimeout)
	defer cancel()
	sample, err := w.call(one)
	switch {
	case ctx.Err() != nil:
		return fmt.Errorf("bench: %s: %w", w.series.Name, ctx.Err())
	case err != nil:
		w.series.Failed++
		w.failures++
		p.Note("%s: %v", w.series.Name, err)
		if w.failures == maxFailures {
			p.Note("%s failed %d times in a row and is given up", w.series.Name, maxFailures)
		}
	default:
		w.failures = 0
		w.series.Samples = append(w.series.Samples, sample)
	}
	return nil
}

// pause is a rest of a fixed time.
func pause(d time.Duration) func(context.Context) error {
	return func(ctx context.Context) error {
		t := time.NewTimer(d)
		defer t.Stop()
		select {
		case <-t.C:
			return nil
		case <-ctx.Done():
			return fmt.Errorf("bench: %w", ctx.Err())
		}
	}
}

// cleanups end what was begun, the last first, whatever happened.
type cleanups []func(context.Context) error

func (c *cleanups) add(end func(context.Context) error) { *c = append(*c, end) }

func (c cleanups) run(ctx context.Context) error {
	var errs []error
	for i := len(c) - 1; i >= 0; i-- {
		errs = append(errs, c[i](ctx))
	}
	return errors.Join(errs...)
}

package bench

import (
	"context"
	"sync"
	"time"
)

// maxInFlight bounds how many calls of a load go on at once. An arrival at the
// bound is counted and not made.
const maxInFlight = 256

// arrivals is what became of a load's beginning.
type arrivals struct {
	Made, Dropped int
}

// pace makes calls at a rate for a time, whether earlier ones have ended or not,
// as independent callers do. It returns when the last one has. When ctx ends no
// more calls begin.
func pace(ctx context.Context, perSecond float64, lasting time.Duration, call func()) arrivals {
	var a arrivals
	var calls sync.WaitGroup
	slots := make(chan struct{}, maxInFlight)
	began := time.Now()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for i := 0; ; i++ {
		at := time.Duration(float64(i) / perSecond * float64(time.Second))
		if at >= lasting {
			break
		}
		// Counted from the beginning, so that no delay adds up.
		timer.Reset(time.Until(began.Add(at)))
		select {
		case <-timer.C:
		case <-ctx.Done():
			calls.Wait()
			return a
		}
		select {
		case slots <- struct{}{}:
			a.Made++
			calls.Go(func() {
				defer func() { <-slots }()
				call()
			})
		default:
			a.Dropped++
		}
	}
	calls.Wait()
	return a
}

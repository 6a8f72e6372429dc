package scale

import (
	"context"
	"sync"
	"sync/atomic"
	"time"
)

// recorder notes what became of many calls.
type recorder struct {
	latencies
	began  time.Time
	failed atomic.Int64
	once   sync.Once
	first  string // the first failure
}

func newRecorder() *recorder { return &recorder{began: time.Now()} }

func (r *recorder) record(took time.Duration, err error) {
	if err == nil {
		r.add(took)
	}
	r.failure(err)
}

func (r *recorder) failure(err error) {
	if err != nil {
		r.failed.Add(1)
		r.once.Do(func() { r.first = err.Error() })
	}
}

// outcome sums up when all calls are over.
func (r *recorder) outcome() outcome {
	p := r.percentiles(50, 99, 100)
	return outcome{
		Done: len(r.all), Failed: int(r.failed.Load()), Problem: r.first,
		P50: p[0], P99: p[1], Max: p[2], Elapsed: time.Since(r.began),
	}
}

// many makes count calls, at most concurrency at once.
func many(ctx context.Context, concurrency, count int, call func(ctx context.Context, i int) error) outcome {
	r := newRecorder()
	var next atomic.Int64
	var workers sync.WaitGroup
	for range max(1, concurrency) {
		workers.Go(func() {
			for i := int(next.Add(1)) - 1; i < count; i = int(next.Add(1)) - 1 {
				began := time.Now()
				err := call(ctx, i)
				r.record(time.Since(began), err)
			}
		})
	}
	workers.Wait()
	return r.outcome()
}

// forTime makes calls for a time, concurrency at once: the next as soon as one is
// over.
func forTime(ctx context.Context, d time.Duration, concurrency int, call func(context.Context) error) outcome {
	r := newRecorder()
	var workers sync.WaitGroup
	for range max(1, concurrency) {
		workers.Go(func() {
			for time.Since(r.began) < d && ctx.Err() == nil {
				began := time.Now()
				err := call(ctx)
				r.record(time.Since(began), err)
			}
		})
	}
	workers.Wait()
	return r.outcome()
}

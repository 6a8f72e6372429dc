package scale

import (
	"math"
	"slices"
	"sync"
	"time"
)

// latencies collects times from many goroutines.
type latencies struct {
	mu  sync.Mutex // guards all
	all []time.Duration
}

func (l *latencies) add(d time.Duration) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.all = append(l.all, d)
}

// percentiles are the nearest-rank percentiles (1-100) of what was collected; 0 if
// that is nothing.
func (l *latencies) percentiles(ps ...float64) []time.Duration {
	l.mu.Lock()
	defer l.mu.Unlock()
	slices.Sort(l.all)
	out := make([]time.Duration, len(ps))
	for i, p := range ps {
		if n := len(l.all); n > 0 {
			out[i] = l.all[max(1, int(math.Ceil(p/100*float64(n))))-1]
		}
	}
	return out
}

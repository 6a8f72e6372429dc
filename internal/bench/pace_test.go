package bench

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestPaceKeepsTheRate(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		var at []time.Duration
		var mu sync.Mutex
		a := pace(t.Context(), 4, 2*time.Second, func() {
			mu.Lock()
			at = append(at, time.Since(began))
			mu.Unlock()
			time.Sleep(10 * time.Second) // no caller waits for another
		})
		require.Equal(t, arrivals{Made: 8}, a)
		require.Len(t, at, 8)
		for i, d := range at {
			require.Equal(t, time.Duration(i)*250*time.Millisecond, d, "arrival %d", i)
		}
		require.Equal(t, 11750*time.Millisecond, time.Since(began), "it waits for the last call")
	})
}

func TestPaceBoundsWhatGoesOn(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := pace(t.Context(), 1000, time.Second, func() { time.Sleep(time.Minute) })
		require.Equal(t, arrivals{Made: maxInFlight, Dropped: 1000 - maxInFlight}, a)
	})
}

func TestPaceEndsWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), 900*time.Millisecond)
		defer cancel()
		began := time.Now()
		a := pace(ctx, 10, time.Hour, func() { <-ctx.Done() })
		require.Equal(t, 900*time.Millisecond, time.Since(began))
		require.InDelta(t, 9, a.Made, 1, "the tenth arrives as the time is over")
	})
}

// What was ready before a load began must not count as its rate.
func TestCounterLeavesTheWarmUpOut(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		c := newCounter(8 * time.Second)
		for range 8 { // a burst, at the beginning
			c.add(nil)
		}
		for range 20 { // 2 a second, for 10 s
			time.Sleep(500 * time.Millisecond)
			c.add(nil)
		}
		require.InDelta(t, 2, c.perSecond(), 1e-9)
		c.add(errFull)
		require.Equal(t, []error{errFull}, c.errs)
		require.InDelta(t, 2, c.perSecond(), 1e-9)
	})
}

package scale

import (
	"context"
	"errors"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func TestPercentiles(t *testing.T) {
	var l latencies
	require.Equal(t, []time.Duration{0}, l.percentiles(99), "of nothing")
	for i := 100; i > 0; i-- {
		l.add(time.Duration(i))
	}
	require.Equal(t, []time.Duration{1, 50, 99, 100}, l.percentiles(1, 50, 99, 100))
}

func TestManyCallsEachOnce(t *testing.T) {
	const count, concurrency = 1000, 7
	var seen [count]atomic.Int32
	var at, most atomic.Int32
	out := many(t.Context(), concurrency, count, func(_ context.Context, i int) error {
		for n := at.Add(1); ; {
			old := most.Load()
			if n <= old || most.CompareAndSwap(old, n) {
				break
			}
		}
		defer at.Add(-1)
		if seen[i].Add(1); i == 3 {
			return errors.New("three")
		}
		return nil
	})
	for i := range seen {
		require.EqualValues(t, 1, seen[i].Load(), "call %d", i)
	}
	require.LessOrEqual(t, most.Load(), int32(concurrency))
	require.Equal(t, count-1, out.Done)
	require.Equal(t, 1, out.Failed)
	require.Equal(t, "three", out.Problem)
}

func TestForTimeEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	out := forTime(ctx, time.Hour, 3, func(context.Context) error {
		cancel()
		return nil
	})
	require.Positive(t, out.Done)
}

// What is read from /proc must be this process's, in the right unit.
func TestTimesAndMemoryAreThisProcess(t *testing.T) {
	before, err := cpuOf(os.Getpid())
	require.NoError(t, err)
	for began := ownCPU(); ownCPU()-began < 20*tick; {
		_ = strings.Repeat("x", 1000)
	}
	after, err := cpuOf(os.Getpid())
	require.NoError(t, err)
	require.GreaterOrEqual(t, after-before, 15*tick)
	require.InDelta(t, ownCPU(), after, float64(20*tick))
	busy, err := busyCPU()
	require.NoError(t, err)
	require.Greater(t, busy, after-before)

	base, err := measure(settled)
	require.NoError(t, err)
	held := make([]byte, 32<<20)
	for i := range held {
		held[i] = 1
	}
	now, err := measure(settled)
	require.NoError(t, err)
	require.InDelta(t, 32<<20, now.Heap-base.Heap, 4<<20)
	require.Greater(t, now.Settled-base.Settled, int64(24<<20))
	require.Positive(t, now.Descriptors)
	require.NotEmpty(t, held)
}

func TestDescriptorsThatAreNotAllowed(t *testing.T) {
	require.NoError(t, allowDescriptors(1))
	var few *DescriptorsError
	require.ErrorAs(t, allowDescriptors(1<<40), &few)
	require.EqualValues(t, 1<<40, few.Need)
	require.Contains(t, few.Error(), "ulimit")
}

func TestReportHoldsFiguresAgainstGoals(t *testing.T) {
	var r Report
	r.add("a", "plain", 123456, "1/s")
	r.hold("a", "high enough", 2000, "1/s", Goal{AtLeast, 2000})
	r.hold("b", "too high", 64, "KiB", Goal{Under, 64})
	missed := r.Missed()
	require.Len(t, missed, 1)
	require.Equal(t, "too high", missed[0].Name)
	require.Equal(t, 123500.0, r.Figures[0].Value, "four digits are meant, no more")
	var out strings.Builder
	require.NoError(t, r.Print(&out))
	require.Contains(t, out.String(), "goal: at least 2000: met")
	require.Contains(t, out.String(), "goal: under 64.0: MISSED")
}

func TestLevelsEndWithAllLeases(t *testing.T) {
	for leases, want := range map[int][]int{10_000: {100, 1000, 10_000}, 1000: {100, 1000}, 300: {100, 300}, 50: {50}} {
		require.Equal(t, want, Options{Leases: leases}.levels())
	}
}

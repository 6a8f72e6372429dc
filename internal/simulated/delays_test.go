package simulated

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// drawAll draws one time for each of n sandboxes.
func drawAll(seed uint64, n int, d Distribution, use int) []time.Duration {
	out := make([]time.Duration, n)
	for i := range out {
		out[i] = dice{seed: seed, sandbox: uint64(i)}.draw(d, use, 0)
	}
	return out
}

func TestDrawsRepeat(t *testing.T) {
	d := Measured().Claim
	require.Equal(t, drawAll(1, 100, d, drawClaim), drawAll(1, 100, d, drawClaim))
	require.NotEqual(t, drawAll(1, 100, d, drawClaim), drawAll(2, 100, d, drawClaim), "another seed gives other delays")
	require.NotEqual(t, drawAll(1, 100, d, drawClaim), drawAll(1, 100, d, drawAttach), "uses are drawn apart")
	one := dice{seed: 1, sandbox: 1}
	require.NotEqual(t, one.draw(d, drawWrite, 0), one.draw(d, drawWrite, 1), "two writes of a sandbox differ")
}

// The draws must lie as the table says: nearly half below the median, and so on.
func TestDrawsFollowTheDistribution(t *testing.T) {
	const n = 20_000
	d := Measured().Attach
	all := drawAll(7, n, d, drawAttach)
	slices.Sort(all)
	require.InEpsilon(t, 91*time.Millisecond, all[n/2], .02)
	for i, q := range quantiles {
		if q == 0 || q == 1 {
			continue
		}
		require.InEpsilon(t, d[i], all[int(q*n)], .05, "quantile %g", q)
	}
	require.GreaterOrEqual(t, all[0], d[0])
	require.LessOrEqual(t, all[n-1], d[len(d)-1])
}

func TestZeroDelayIsNone(t *testing.T) {
	for _, got := range drawAll(1, 100, Distribution{}, drawLife) {
		require.Zero(t, got)
	}
}

func TestExponentialRises(t *testing.T) {
	d := Exponential(time.Minute)
	require.Zero(t, d[0])
	require.True(t, slices.IsSorted(d[:]))
	require.InEpsilon(t, 41590*time.Millisecond, d[2], .01, "half are over after ln 2 of the mean")
}

func TestProgramFollowsTheClock(t *testing.T) {
	p := Program{After: 10, Text: "abc", Times: 3, Every: 5}
	for _, c := range []struct {
		at, next time.Duration
		printed  int
	}{{0, 10, 0}, {9, 10, 0}, {10, 15, 1}, {14, 15, 1}, {15, 20, 2}, {20, 20, 3}, {99, 20, 3}} {
		require.Equal(t, c.printed, p.printed(c.at), "at %d", c.at)
		require.Equal(t, c.next, p.next(c.at), "at %d", c.at)
	}
	require.EqualValues(t, 20, p.length())
	silent := Program{After: 7}
	require.EqualValues(t, 7, silent.length())
	require.EqualValues(t, 7, silent.next(0))
	require.Zero(t, silent.printed(100))
}

// A reader that attaches anywhere must get the bytes it would have got.
func TestOutputIsTheSameFromAnyOffset(t *testing.T) {
	p := Program{Text: "0123456789", Times: 4}
	whole := string(p.output(0, 40))
	require.Equal(t, "0123456789012345678901234567890123456789", whole)
	for at := range 40 {
		for n := range 40 - at {
			require.Equal(t, whole[at:at+n], string(p.output(uint64(at), n)))
		}
	}
}

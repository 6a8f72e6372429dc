package bench

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// times is n of the same.
func times(n, millis int) []int {
	all := make([]int, n)
	for i := range all {
		all[i] = millis
	}
	return all
}

// reportOf makes a report of these alone.
func reportOf(figures []Figure, series ...Series) *Report {
	return NewReport(Setting{Began: time.Date(2026, 11, 30, 1, 2, 3, 0, time.UTC), CPUs: 2, RuntimeClass: "gvisor", Version: "v1"}, series, figures, nil)
}

func judgementOf(t *testing.T, r *Report, name string) Judgement {
	t.Helper()
	for _, j := range r.Goals {
		if strings.Contains(j.Name, name) {
			return j
		}
	}
	t.Fatalf("there is no goal %q", name)
	return Judgement{}
}

// Every goal is about something that is measured, and its softer bound is no
// harder than the goal.
func TestGoalsAreAboutWhatIsMeasured(t *testing.T) {
	t.Parallel()
	keys := map[Key]bool{Memory: true}
	for _, f := range loadFigures(1, 1, LoadResult{}) {
		keys[f.Key] = true
	}
	s := &Suite{broker: &Broker{}, held: &Held{}, peer: &Peer{}, o: Options{Counts: Full, NoStock: "none"}}
	s.plan()
	for _, w := range s.ways {
		require.False(t, keys[w.series.Key], "%s is planned twice", w.series.Key)
		keys[w.series.Key] = true
		require.LessOrEqual(t, len(w.series.Name), nameWidth)
		require.Positive(t, w.series.Fewest)
	}
	require.Empty(t, s.leftOut)
	for _, g := range goals {
		require.True(t, keys[g.left.key], "%s: nothing measures %s", g.name, g.left.key)
		require.True(t, g.right == (operand{}) || keys[g.right.key], "%s: nothing measures %s", g.name, g.right.key)
		require.LessOrEqual(t, len(g.name), nameWidth)
		if g.under {
			require.GreaterOrEqual(t, g.must, g.want, g.name)
		} else {
			require.LessOrEqual(t, g.must, g.want, g.name)
		}
	}
}

func TestVerdicts(t *testing.T) {
	t.Parallel()
	jobs := measured(Job, MinSlow, times(MinSlow, 4000)...)
	for name, tt := range map[string]struct {
		millis int
		want   Verdict
		ratio  float64
	}{
		"the goal is met":         {10, Met, 400},
		"what must be is met":     {16, MustMet, 250},
		"it is just below":        {17, Below, 4000.0 / 17},
		"far from it":             {4000, Below, 1},
		"slower than what it was": {8000, Below, 0.5},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			j := judgementOf(t, reportOf(nil, jobs, measured(RunStock, MinFast, times(MinFast, tt.millis)...)), "one Job per call")
			require.Equal(t, tt.want, j.Verdict)
			require.InDelta(t, tt.ratio, j.Ratio, 1e-9)
			require.InDelta(t, 4000, j.Left, 1e-9, "the figures stand beside the ratio")
			require.InDelta(t, tt.millis, j.Right, 1e-9)
		})
	}
}

// Some bounds are upper ones, and some goals are about one figure.
func TestUpperBounds(t *testing.T) {
	t.Parallel()
	r := reportOf([]Figure{{Key: Memory, Value: 12.1, Unit: "MB", Enough: true}},
		measured(AcquireStock, MinFast, times(MinFast, 1)...),
		measured(RunStock, MinFast, append(times(MinFast, 10), 51)...))
	require.Equal(t, Met, judgementOf(t, r, "acquire").Verdict)
	require.Equal(t, Below, judgementOf(t, r, "memory").Verdict)
	require.Equal(t, Below, judgementOf(t, r, "p99 against p50").Verdict, "one outlier of twenty-one is the 99th percentile")
	require.InDelta(t, 5.1, judgementOf(t, r, "p99 against p50").Ratio, 1e-9)
}

func TestRatiosNeedEnoughSamples(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		jobs, runs int
		want       Verdict
	}{
		"enough of both":        {MinSlow, MinFast, Met},
		"one Job too few":       {MinSlow - 1, MinFast, TooFew},
		"one run too few":       {MinSlow, MinFast - 1, TooFew},
		"no Job":                {0, MinFast, TooFew},
		"no run":                {MinSlow, 0, TooFew},
		"more than is required": {2 * MinSlow, 2 * MinFast, Met},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := reportOf(nil, measured(Job, MinSlow, times(tt.jobs, 4000)...), measured(RunStock, MinFast, times(tt.runs, 10)...))
			j := judgementOf(t, r, "one Job per call")
			require.Equal(t, tt.want, j.Verdict)
			if tt.want == TooFew {
				require.Zero(t, j.Ratio)
				require.Equal(t, "too few", j.ratio())
			}
		})
	}
}

func TestCheck(t *testing.T) {
	t.Parallel()
	slow := measured(RunStock, MinFast, times(MinFast, 100)...)
	slow.Failed = 3
	wrong := reportOf(nil, measured(Job, MinSlow, times(MinSlow, 4000)...), slow).Check()
	require.Contains(t, wrong, "run with stock: faster than one Job per call: 40 x, it must be at least 250")
	require.Contains(t, wrong, "acquire from stock: not measured, or from too few samples")
	require.Contains(t, wrong, "the way run-stock: 3 calls failed")

	require.Empty(t, everythingMet().Check())
}

// everythingMet is a report with all that the goals ask for.
func everythingMet() *Report {
	fast := func(k Key, millis int) Series { return measured(k, MinFast, times(MinFast, millis)...) }
	bulk := func(k Key) Series {
		s := measured(k, MinSlow, times(MinSlow, 400)...)
		s.Bytes = stdoutBytes
		return s
	}
	delay := fast(OutputDelay, 1)
	for i := range delay.Samples {
		delay.Samples[i] = Sample{Done: 800 * time.Microsecond}
	}
	return reportOf([]Figure{
		{Key: Memory, Name: "runner's resident memory", Value: 9.5, Unit: "MB", Enough: true},
		{Key: Sustainable, Name: "sustainable", Value: 2.5, Unit: "/s", Enough: true},
		{Key: Sustained, Name: "sustained", Value: 2.4, Unit: "/s", Enough: true},
	},
		measured(Job, MinSlow, times(MinSlow, 4000)...), fast(ClaimExec, 310), fast(PeerFirst, 210), fast(PeerLater, 50), fast(RunStock, 10),
		fast(AcquireStock, 1), fast(Exec, 8), fast(Channel, 1), fast(BareEcho, 1), delay, bulk(StdoutBare), bulk(StdoutLease))
}

// A pool that got faster meanwhile is no reproach to the broker, nor is a rate that
// was asked for below it.
func TestSustainedIsComparedWithWhatCouldBe(t *testing.T) {
	t.Parallel()
	load := LoadResult{PerSecond: 1.9, Runs: measured(LoadRun, MinFast, times(MinFast, 10)...)}
	for name, tt := range map[string]struct {
		refill, offered, want float64
	}{
		"the pool got faster":    {3, 2, 0.95},
		"the pool got slower":    {1.9, 2, 1},
		"a lower rate was asked": {5, 1.9, 1},
		"both are alike":         {2, 2, 0.95},
	} {
		j := judgementOf(t, reportOf(loadFigures(tt.refill, tt.offered, load)), "sustained")
		require.InDelta(t, tt.want, j.Ratio, 1e-9, name)
		require.Equal(t, Met, j.Verdict, name)
	}
	load.Runs.Samples = load.Runs.Samples[1:]
	require.Equal(t, TooFew, judgementOf(t, reportOf(loadFigures(2, 2, load)), "sustained").Verdict)
}

func TestShortNumbers(t *testing.T) {
	t.Parallel()
	for n, want := range map[float64]string{
		0: "0", 0.9: "0.90", 1: "1", 1.2: "1.20", 0.004: "0.00", 9.999: "10.00", 12.34: "12.3", 99.95: "100.0", 250: "250", 2999.6: "3000",
	} {
		require.Equal(t, want, short(n))
	}
}

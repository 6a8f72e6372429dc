package bench

import (
	"bytes"
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// measured is a series whose calls took these milliseconds, with the first byte
// after half of that.
func measured(name string, fewest int, millis ...int) Series {
	s := Series{Name: name, Fewest: fewest}
	for _, n := range millis {
		d := time.Duration(n) * time.Millisecond
		s.Samples = append(s.Samples, Sample{FirstByte: d / 2, Done: d})
	}
	return s
}

// upTo is 1 to n, the largest first: a percentile sorts.
func upTo(n int) []int {
	var all []int
	for ; n > 0; n-- {
		all = append(all, n)
	}
	return all
}

// The nearest rank of the p-th percentile of n samples is p·n/100, rounded up.
func TestPercentile(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		millis []int
		p      float64
		want   int
	}{
		"the median of one":                  {[]int{7}, 50, 7},
		"the highest of one":                 {[]int{7}, 99, 7},
		"the median of two is the lower":     {[]int{9, 3}, 50, 3},
		"the median of three":                {[]int{30, 10, 20}, 50, 20},
		"the median of four is no mean":      {[]int{40, 10, 30, 20}, 50, 20},
		"the median of five":                 {[]int{15, 20, 35, 40, 50}, 50, 35},
		"a low one of five":                  {[]int{15, 20, 35, 40, 50}, 5, 15},
		"the 30th of five":                   {[]int{15, 20, 35, 40, 50}, 30, 20},
		"the 40th of five hits a rank":       {[]int{15, 20, 35, 40, 50}, 40, 20},
		"just above the 40th is the next":    {[]int{15, 20, 35, 40, 50}, 40.1, 35},
		"the 100th is the largest":           {[]int{15, 20, 35, 40, 50}, 100, 50},
		"the 0th is the smallest":            {[]int{15, 20, 35, 40, 50}, 0, 15},
		"the 90th of ten":                    {upTo(10), 90, 9},
		"the 99th of ten is the largest":     {upTo(10), 99, 10},
		"the 90th of twenty":                 {upTo(20), 90, 18},
		"the 99th of a hundred":              {upTo(100), 99, 99},
		"the 99th of a hundred and one":      {upTo(101), 99, 100},
		"equal times count each":             {[]int{5, 5, 5, 9}, 75, 5},
		"one outlier does not move the 50th": {[]int{1, 2, 3, 4, 100000}, 50, 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := measured("", 0, tt.millis...)
			before := append([]Sample(nil), s.Samples...)
			require.Equal(t, time.Duration(tt.want)*time.Millisecond, s.Percentile(tt.p, done))
			require.Equal(t, time.Duration(tt.want)*time.Millisecond/2, s.Percentile(tt.p, firstByte))
			require.Equal(t, before, s.Samples, "the samples keep their order")
		})
	}
	require.Zero(t, Series{}.Percentile(50, done), "of nothing")
}

func TestRows(t *testing.T) {
	t.Parallel()
	jobs := measured("jobs", MinSlow, 3000, 1000, 2000, 5000, 4000)
	runs := measured("runs", MinFast, upTo(20)...)
	runs.Failed = 2
	require.Equal(t, []Row{
		{Name: "jobs", Samples: 5, FirstByteMS: 1500, P50MS: 3000, P90MS: 5000, P99MS: 5000, MaxMS: 5000, Ratio: 1},
		{Name: "runs", Samples: 20, Failed: 2, FirstByteMS: 5, P50MS: 10, P90MS: 18, P99MS: 20, MaxMS: 20, Ratio: 300},
	}, Rows([]Series{jobs, runs}))
	require.Empty(t, Rows(nil))
}

func TestMillisecondsKeepTwoDigits(t *testing.T) {
	t.Parallel()
	s := Series{Samples: []Sample{{FirstByte: 1234567 * time.Nanosecond, Done: 9996 * time.Microsecond}}}
	row := Rows([]Series{s})[0]
	require.InDelta(t, 1.23, row.FirstByteMS, 1e-9)
	require.InDelta(t, 10, row.P50MS, 1e-9)
}

func TestARatioNeedsEnoughSamples(t *testing.T) {
	t.Parallel()
	thousands := func(n int) []int {
		var all []int
		for range n {
			all = append(all, 1000)
		}
		return all
	}
	for name, tt := range map[string]struct {
		slow, fast int
		want       float64 // of the fast one, whose median is 10 ms of 20
	}{
		"enough of both":           {MinSlow, MinFast, 100},
		"one too few fast ones":    {MinSlow, MinFast - 1, 0},
		"one too few of the base":  {MinSlow - 1, MinFast, 0},
		"none of the base":         {0, MinFast, 0},
		"none of the fast ones":    {MinSlow, 0, 0},
		"more than enough of both": {2 * MinSlow, MinFast, 100},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			rows := Rows([]Series{measured("slow", MinSlow, thousands(tt.slow)...), measured("fast", MinFast, upTo(tt.fast)...)})
			require.InDelta(t, tt.want, rows[1].Ratio, 1e-9)
			var out bytes.Buffer
			require.NoError(t, Print(&out, rows))
			require.Equal(t, tt.want == 0, strings.HasSuffix(out.String(), "too few\n"), out.String())
		})
	}
}

func TestPrint(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	require.NoError(t, Print(&out, []Row{
		{Name: "a Job per call", Samples: 5, Failed: 1, FirstByteMS: 1500.04, P50MS: 2000, P90MS: 3000, P99MS: 4000, MaxMS: 5000, Ratio: 1},
		{Name: "a run", Samples: 20, FirstByteMS: 5, P50MS: 6, P90MS: 7, P99MS: 8, MaxMS: 9, Ratio: 333.3},
	}))
	lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
	require.Len(t, lines, 3)
	require.Equal(t, strings.Fields("samples failed first byte p50 p90 p99 max ratio"), strings.Fields(lines[0]))
	require.Equal(t, strings.Fields("a Job per call 5 1 1500.0 ms 2000.0 ms 3000.0 ms 4000.0 ms 5000.0 ms 1.0"), strings.Fields(lines[1]))
	require.Equal(t, strings.Fields("a run 20 0 5.0 ms 6.0 ms 7.0 ms 8.0 ms 9.0 ms 333.3"), strings.Fields(lines[2]))
	for _, l := range lines[1:] {
		require.Len(t, l, len(lines[1]), "the columns are under each other")
	}
}

// hiccup fails at one write; those before and after succeed.
type hiccup struct{ at int }

var errFull = errors.New("the disk is full")

func (h *hiccup) Write(p []byte) (int, error) {
	h.at--
	if h.at == -1 {
		return 0, errFull
	}
	return len(p), nil
}

func TestPrintTellsOfAFailedWrite(t *testing.T) {
	t.Parallel()
	rows := []Row{{Name: "a"}, {Name: "b"}}
	for line := range 3 {
		require.ErrorIs(t, Print(&hiccup{line}, rows), errFull, "at line %d", line)
	}
	require.NoError(t, Print(&hiccup{3}, rows))
}

package bench

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// measured is a series whose calls took these milliseconds, with the first byte
// after half of that and the last after three quarters.
func measured(key Key, fewest int, millis ...int) Series {
	s := Series{Key: key, Name: "the way " + string(key), Fewest: fewest}
	for _, n := range millis {
		d := time.Duration(n) * time.Millisecond
		s.Samples = append(s.Samples, Sample{FirstByte: d / 2, LastByte: d * 3 / 4, Done: d})
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

func TestRow(t *testing.T) {
	t.Parallel()
	s := measured(Job, MinSlow, 3000, 1000, 2000, 5000, 4000)
	s.Failed = 2
	require.Equal(t, Row{
		Key: Job, Name: "the way job", Samples: 5, Failed: 2, Enough: true,
		FirstByte: &Times{1500, 2500, 2500, 2500}, LastByte: &Times{2250, 3750, 3750, 3750}, Done: Times{3000, 5000, 5000, 5000},
	}, s.row())
	s.Fewest++
	require.False(t, s.row().Enough)
	require.False(t, Series{}.row().Enough, "of nothing")
}

func TestRowOfARoundTrip(t *testing.T) {
	t.Parallel()
	row := Series{Samples: []Sample{{Done: 9996400 * time.Nanosecond}}}.row()
	require.Nil(t, row.FirstByte, "there is no output")
	require.Nil(t, row.LastByte)
	require.InDelta(t, 9.996, row.Done.P50, 1e-9, "to the microsecond")
}

// The start of a program is no part of its output's rate.
func TestRowOfMuchOutput(t *testing.T) {
	t.Parallel()
	s := Series{Bytes: 64e6, Samples: []Sample{{FirstByte: time.Second, LastByte: 3 * time.Second, Done: 9 * time.Second}}}
	require.InDelta(t, 32, s.row().MBPerSecond, 1e-9)
}

func TestStopwatch(t *testing.T) {
	t.Parallel()
	w := newStopwatch()
	for _, part := range []string{"", "2", "\n"} {
		n, err := w.Write([]byte(part))
		require.NoError(t, err)
		require.Equal(t, len(part), n)
	}
	sample, err := w.sample()
	require.NoError(t, err)
	require.Positive(t, sample.FirstByte)
	require.GreaterOrEqual(t, sample.LastByte, sample.FirstByte)
	require.GreaterOrEqual(t, sample.Done, sample.LastByte)
	_, err = w.bulk(3)
	require.ErrorContains(t, err, "2 bytes")

	much := newStopwatch()
	for range 100 {
		_, err := much.Write(make([]byte, 100))
		require.NoError(t, err)
	}
	_, err = much.bulk(10_000)
	require.NoError(t, err)
	require.LessOrEqual(t, much.text.Len(), maxKept)
	_, err = much.sample()
	require.Error(t, err, "this is not the answer")
}

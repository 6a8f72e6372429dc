// Package bench measures what a call costs: a run through the broker beside one
// Job per call, on the same cluster in the same run, so that the ratio means
// something on a machine whose speed does not.
package bench

import (
	"fmt"
	"io"
	"math"
	"slices"
	"time"
)

// Fewest samples from which a ratio is printed.
const (
	MinFast = 20
	MinSlow = 5
)

// Sample is one call as its caller saw it.
type Sample struct {
	FirstByte time.Duration // until the first byte of output
	Done      time.Duration // until the ending was known
}

// Series is one way to make a call, measured.
type Series struct {
	Name    string
	Samples []Sample
	Failed  int
	// Fewest is how many samples a ratio needs.
	Fewest int
}

// Percentile is the nearest-rank percentile (1-100) of one time of the samples.
func (s Series) Percentile(p float64, of func(Sample) time.Duration) time.Duration {
	if len(s.Samples) == 0 {
		return 0
	}
	all := make([]time.Duration, len(s.Samples))
	for i, sample := range s.Samples {
		all[i] = of(sample)
	}
	slices.Sort(all)
	rank := int(math.Ceil(p / 100 * float64(len(all))))
	return all[max(rank, 1)-1]
}

// Row is a series in numbers, in milliseconds.
type Row struct {
	Name        string  `json:"name"`
	Samples     int     `json:"samples"`
	Failed      int     `json:"failed"`
	FirstByteMS float64 `json:"first_byte_p50_ms"`
	P50MS       float64 `json:"p50_ms"`
	P90MS       float64 `json:"p90_ms"`
	P99MS       float64 `json:"p99_ms"`
	MaxMS       float64 `json:"max_ms"`
	// Ratio says how many times faster than the baseline the median is; 0 if
	// there are too few samples to say.
	Ratio float64 `json:"ratio"`
}

func done(s Sample) time.Duration      { return s.Done }
func firstByte(s Sample) time.Duration { return s.FirstByte }

func ms(d time.Duration) float64 { return math.Round(float64(d)/float64(time.Millisecond)*100) / 100 }

// Rows computes the table; the first series is the baseline of the ratios.
func Rows(series []Series) []Row {
	rows := make([]Row, len(series))
	for i, s := range series {
		rows[i] = Row{
			Name: s.Name, Samples: len(s.Samples), Failed: s.Failed,
			FirstByteMS: ms(s.Percentile(50, firstByte)), P50MS: ms(s.Percentile(50, done)), P90MS: ms(s.Percentile(90, done)),
			P99MS: ms(s.Percentile(99, done)), MaxMS: ms(s.Percentile(100, done)),
		}
		base := series[0]
		if len(s.Samples) >= s.Fewest && len(base.Samples) >= base.Fewest && rows[i].P50MS > 0 {
			rows[i].Ratio = math.Round(rows[0].P50MS/rows[i].P50MS*10) / 10
		}
	}
	return rows
}

// Print writes the table for people. It returns w's error.
func Print(w io.Writer, rows []Row) error {
	_, err := fmt.Fprintf(w, "%-34s %7s %6s %10s %9s %9s %9s %9s %7s\n", "", "samples", "failed", "first byte", "p50", "p90", "p99", "max", "ratio")
	for _, r := range rows {
		ratio := "too few"
		if r.Ratio > 0 {
			ratio = fmt.Sprintf("%.1f", r.Ratio)
		}
		if err == nil {
			_, err = fmt.Fprintf(w, "%-34s %7d %6d %7.1f ms %6.1f ms %6.1f ms %6.1f ms %6.1f ms %7s\n", r.Name, r.Samples, r.Failed, r.FirstByteMS, r.P50MS, r.P90MS, r.P99MS, r.MaxMS, ratio)
		}
	}
	return err
}

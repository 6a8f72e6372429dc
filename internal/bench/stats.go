package bench

import (
	"math"
	"slices"
	"time"
)

// Fewest samples from which a ratio is printed.
const (
	MinFast = 20
	MinSlow = 5
)

// Key names a series in the JSON and in the goals.
type Key string

// The series.
const (
	Job            Key = "job"
	ClaimExec      Key = "claim-exec"
	PeerFirst      Key = "sandboxd-first"
	PeerLater      Key = "sandboxd-later"
	PeerBackToBack Key = "sandboxd-back-to-back"
	RunStock       Key = "run-stock"
	RunBackToBack  Key = "run-back-to-back"
	RunNoStock     Key = "run-no-stock"
	AcquireStock   Key = "acquire-stock"
	Exec           Key = "exec"
	ExecBackToBack Key = "exec-back-to-back"
	Channel        Key = "channel"
	BareEcho       Key = "bare-echo"
	LeaseEcho      Key = "lease-echo"
	OutputDelay    Key = "output-delay"
	StdoutBare     Key = "stdout-bare"
	StdoutLease    Key = "stdout-lease"
	LoadRun        Key = "load-run"
	LoadQueue      Key = "load-queue"
	Memory         Key = "runner-memory"
	MemoryInside   Key = "runner-memory-inside"
	IdleSandbox    Key = "idle-sandbox-memory"
	IdleSleeper    Key = "idle-sleeper-memory"
	Refill         Key = "refill"
	Offered        Key = "offered"
	Sustainable    Key = "sustainable"
	Sustained      Key = "sustained"
	Dropped        Key = "dropped"
	Warm           Key = "warm"
)

// Sample is one call as its caller saw it, from its beginning on.
type Sample struct {
	FirstByte time.Duration // until the first byte of output; 0: it has none
	LastByte  time.Duration // until the last
	Done      time.Duration // until the ending was known
}

// Series is one way to make a call, measured.
type Series struct {
	Key     Key
	Name    string
	Samples []Sample
	Failed  int
	// Fewest is how many samples a ratio needs.
	Fewest int
	// Bytes is how much output each call has, if it is about the rate of that.
	Bytes int64
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

// Times are the percentiles of one time, in milliseconds.
type Times struct {
	P50 float64 `json:"p50_ms"`
	P90 float64 `json:"p90_ms"`
	P99 float64 `json:"p99_ms"`
	Max float64 `json:"max_ms"`
}

func (s Series) times(of func(Sample) time.Duration) Times {
	at := func(p float64) float64 { return ms(s.Percentile(p, of)) }
	return Times{P50: at(50), P90: at(90), P99: at(99), Max: at(100)}
}

// Row is a series in numbers.
type Row struct {
	Key     Key    `json:"key"`
	Name    string `json:"name"`
	Samples int    `json:"samples"`
	Failed  int    `json:"failed"`
	// Enough says that there are as many samples as a ratio needs.
	Enough bool `json:"enough"`
	// FirstByte and LastByte are absent where there is no output to wait for.
	FirstByte *Times `json:"first_byte,omitempty"`
	LastByte  *Times `json:"last_byte,omitempty"`
	Done      Times  `json:"done"`
	// MBPerSecond is the median rate of the output from its first byte to its
	// last, in 10⁶ bytes.
	MBPerSecond float64 `json:"mb_per_s,omitempty"`
}

func done(s Sample) time.Duration      { return s.Done }
func firstByte(s Sample) time.Duration { return s.FirstByte }
func lastByte(s Sample) time.Duration  { return s.LastByte }
func streaming(s Sample) time.Duration { return s.LastByte - s.FirstByte }

// ms is d in milliseconds, in steps of a microsecond.
func ms(d time.Duration) float64 {
	return float64(d.Round(time.Microsecond)) / float64(time.Millisecond)
}

// row computes the numbers of a series.
func (s Series) row() Row {
	r := Row{
		Key: s.Key, Name: s.Name, Samples: len(s.Samples), Failed: s.Failed,
		Enough: len(s.Samples) >= max(s.Fewest, 1), Done: s.times(done),
	}
	if s.Percentile(100, lastByte) > 0 {
		first, last := s.times(firstByte), s.times(lastByte)
		r.FirstByte, r.LastByte = &first, &last
	}
	if d := s.Percentile(50, streaming); s.Bytes > 0 && d > 0 {
		r.MBPerSecond = float64(s.Bytes) / 1e6 / d.Seconds()
	}
	return r
}

// Figure is a number that is no time of a call.
type Figure struct {
	Key   Key     `json:"key"`
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
	// Enough says that it was measured from enough to compare it.
	Enough bool `json:"enough"`
}

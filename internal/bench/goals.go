package bench

import (
	"fmt"
	"math"
)

// stat is which number of a row a goal is about.
type stat string

// The numbers.
const (
	p50   stat = "p50"
	p99   stat = "p99"
	rate  stat = "MB/s"
	value stat = "value"
)

// operand is one number of the report.
type operand struct {
	key  Key
	stat stat
}

// goal is one line of what the project wants to reach. With under, the left
// number divided by the right must not exceed the bounds, else it must reach them.
// Without a right side the left number itself is judged.
type goal struct {
	name        string
	left, right operand
	under       bool
	want        float64
	// must is what --check fails below; it is want where no softer bound is given.
	must float64
	unit string
}

// goals are all of them, in one place.
var goals = []goal{
	{"run with stock: faster than one Job per call", operand{Job, p50}, operand{RunStock, p50}, false, 400, 250, "x"},
	{"run with stock: faster than claim and exec", operand{ClaimExec, p50}, operand{RunStock, p50}, false, 30, 20, "x"},
	{"run with stock: faster than agent-sandbox's client, first run", operand{PeerFirst, p50}, operand{RunStock, p50}, false, 20, 12, "x"},
	{"run with stock: p99 against p50", operand{RunStock, p99}, operand{RunStock, p50}, true, 5, 5, "x"},
	{"acquire from stock", operand{AcquireStock, p50}, operand{}, true, 1, 1, "ms"},
	{"channel's round trip against a bare held exec's", operand{Channel, p50}, operand{BareEcho, p50}, true, 1.2, 1.2, "x"},
	{"exec in a held lease against the channel's round trip", operand{Exec, p50}, operand{Channel, p50}, true, 8, 8, "x"},
	{"exec in a held lease: faster than agent-sandbox's client, later run", operand{PeerLater, p50}, operand{Exec, p50}, false, 4, 2.5, "x"},
	{"output's way to the caller against the channel's round trip", operand{OutputDelay, p50}, operand{Channel, p50}, true, 2, 2, "x"},
	{"stdout's rate against a bare exec's", operand{StdoutLease, rate}, operand{StdoutBare, rate}, false, 0.9, 0.9, "x"},
	{"sustained runs against the pool's refill", operand{Sustained, value}, operand{Sustainable, value}, false, 0.9, 0.9, "x"},
	{"runner's memory in an idle sandbox", operand{Memory, value}, operand{}, true, 12, 12, "MB"},
}

// Verdict says how far a goal was reached.
type Verdict string

// The verdicts.
const (
	Met     Verdict = "met"
	MustMet Verdict = "must met" // the goal is not, what must be is
	Below   Verdict = "below"
	// TooFew refuses to judge: there are not enough samples.
	TooFew Verdict = "too few samples"
)

// Judgement is a goal held against the figures.
type Judgement struct {
	Name string `json:"name"`
	// Left and Right are the figures, Ratio is Left by Right; Right is 0 where the
	// figure alone is judged, which is then the Ratio too.
	Left    float64 `json:"left"`
	Right   float64 `json:"right,omitempty"`
	Ratio   float64 `json:"ratio"`
	Unit    string  `json:"unit"` // of the ratio
	Figures string  `json:"figures_unit"`
	Under   bool    `json:"under"` // the bounds are upper ones
	Goal    float64 `json:"goal"`
	Must    float64 `json:"must"`
	Verdict Verdict `json:"verdict"`
}

// number finds a number; enough is false when it was measured from too little.
func (r *Report) number(o operand) (n float64, unit string, enough bool) {
	for _, row := range r.Rows {
		if row.Key != o.key {
			continue
		}
		switch o.stat {
		case p50:
			return row.Done.P50, "ms", row.Enough
		case p99:
			return row.Done.P99, "ms", row.Enough
		case rate:
			return row.MBPerSecond, "MB/s", row.Enough
		}
	}
	for _, f := range r.Figures {
		if f.Key == o.key && o.stat == value {
			return f.Value, f.Unit, f.Enough
		}
	}
	return 0, "", false
}

// judge holds the figures against a goal.
func (r *Report) judge(g goal) Judgement {
	j := Judgement{Name: g.name, Unit: g.unit, Under: g.under, Goal: g.want, Must: g.must, Verdict: TooFew}
	left, unit, enough := r.number(g.left)
	right := 1.0
	if g.right != (operand{}) {
		var also bool
		right, _, also = r.number(g.right)
		enough = enough && also
		j.Right = right
	}
	j.Left, j.Figures = left, unit
	if !enough || left <= 0 || right <= 0 {
		return j
	}
	j.Ratio = left / right
	j.Verdict = Below
	reaches := func(bound float64) bool {
		if g.under {
			return j.Ratio <= bound
		}
		return j.Ratio >= bound
	}
	switch {
	case reaches(g.want):
		j.Verdict = Met
	case reaches(g.must):
		j.Verdict = MustMet
	}
	return j
}

// Check returns a line for each row that is below what it must be, or of which
// that is not known, and for each way with calls that failed.
func (r *Report) Check() []string {
	var wrong []string
	for _, j := range r.Goals {
		switch j.Verdict {
		case Below:
			wrong = append(wrong, fmt.Sprintf("%s: %s, it must be %s", j.Name, j.ratio(), j.bound(j.Must)))
		case TooFew:
			wrong = append(wrong, j.Name+": not measured, or from too few samples")
		}
	}
	for _, row := range r.Rows {
		if row.Failed > 0 {
			wrong = append(wrong, fmt.Sprintf("%s: %d calls failed", row.Name, row.Failed))
		}
	}
	return wrong
}

// ratio is the ratio for people.
func (j Judgement) ratio() string {
	if j.Verdict == TooFew {
		return "too few"
	}
	return short(j.Ratio) + " " + j.Unit
}

// bound is one of the bounds for people.
func (j Judgement) bound(n float64) string {
	if j.Under {
		return "at most " + short(n)
	}
	return "at least " + short(n)
}

// short prints a number with three digits or more.
func short(n float64) string {
	switch a := math.Abs(n); {
	case a == math.Trunc(a) && a < 1e6, a >= 100:
		return fmt.Sprintf("%.0f", n)
	case a >= 10:
		return fmt.Sprintf("%.1f", n)
	default:
		return fmt.Sprintf("%.2f", n)
	}
}

package scale

import (
	"fmt"
	"io"
	"math"
)

// Sense says on which side of a goal a figure has to lie.
type Sense string

// The senses.
const (
	AtLeast Sense = "at least"
	Under   Sense = "under"
)

// Goal is what a figure is held against.
type Goal struct {
	Sense Sense   `json:"sense"`
	Value float64 `json:"value"`
}

// Figure is one number of the benchmark.
type Figure struct {
	Stage string  `json:"stage"`
	Name  string  `json:"name"`
	Value float64 `json:"value"`
	Unit  string  `json:"unit"`
	Goal  *Goal   `json:"goal,omitempty"`
	Met   bool    `json:"met"` // true without a goal
}

// Report is what a benchmark found, with what it was found on.
type Report struct {
	Cores   int      `json:"cores"`
	System  string   `json:"system"`
	Go      string   `json:"go"`
	Version string   `json:"version"`
	Figures []Figure `json:"figures"`
}

// add notes a figure without a goal.
func (r *Report) add(stage, name string, value float64, unit string) {
	r.Figures = append(r.Figures, Figure{Stage: stage, Name: name, Value: round(value), Unit: unit, Met: true})
}

// hold notes a figure with a goal.
func (r *Report) hold(stage, name string, value float64, unit string, g Goal) {
	met := value >= g.Value
	if g.Sense == Under {
		met = value < g.Value
	}
	r.Figures = append(r.Figures, Figure{Stage: stage, Name: name, Value: round(value), Unit: unit, Goal: &g, Met: met})
}

// Missed are the figures that miss their goal.
func (r *Report) Missed() []Figure {
	var out []Figure
	for _, f := range r.Figures {
		if !f.Met {
			out = append(out, f)
		}
	}
	return out
}

// Print writes the report for people. It returns w's error.
func (r *Report) Print(w io.Writer) error {
	_, err := fmt.Fprintf(w, "%s, %s, %d cores, sandbox-broker %s\n", r.System, r.Go, r.Cores, r.Version)
	stage := ""
	for _, f := range r.Figures {
		if err == nil && f.Stage != stage {
			_, err = fmt.Fprintf(w, "\n%s\n", f.Stage)
		}
		stage = f.Stage
		if err == nil {
			_, err = fmt.Fprintf(w, "  %-58s %10s %-10s%s\n", f.Name, number(f.Value), f.Unit, f.verdict())
		}
	}
	return err
}

func (f Figure) verdict() string {
	if f.Goal == nil {
		return ""
	}
	word := "MISSED"
	if f.Met {
		word = "met"
	}
	return fmt.Sprintf(" goal: %s %s: %s", f.Goal.Sense, number(f.Goal.Value), word)
}

// digits is to how many significant digits figures are given: more would be noise.
const digits = 4

func round(v float64) float64 {
	if v == 0 || math.IsNaN(v) || math.IsInf(v, 0) {
		return 0
	}
	unit := math.Pow(10, math.Floor(math.Log10(math.Abs(v)))-digits+1)
	return math.Round(v/unit) * unit
}

func number(v float64) string {
	switch {
	case math.Abs(v) >= 1000:
		return fmt.Sprintf("%.0f", v)
	case math.Abs(v) >= 10:
		return fmt.Sprintf("%.1f", v)
	}
	return fmt.Sprintf("%.3g", v)
}

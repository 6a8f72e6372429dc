package bench

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"time"
)

// Setting says where and when it was measured.
type Setting struct {
	Began        time.Time `json:"began"`
	TookSeconds  float64   `json:"took_s"`
	Version      string    `json:"version"`
	Broker       string    `json:"broker"`
	Kubernetes   string    `json:"kubernetes"`
	CPUs         int       `json:"cpus"` // of the machine that measured
	Pool         string    `json:"pool"`
	WarmPool     string    `json:"warm_pool"`
	RuntimeClass string    `json:"runtime_class"`
}

// Report is all that a benchmark found.
type Report struct {
	Setting Setting     `json:"setting"`
	Rows    []Row       `json:"rows"`
	Figures []Figure    `json:"figures"`
	Goals   []Judgement `json:"goals"`
	// LeftOut says what was not measured, and why.
	LeftOut []string `json:"left_out,omitempty"`
	// Ended says why the benchmark ended early; empty: it did not.
	Ended string `json:"ended,omitempty"`
}

// NewReport computes the numbers and holds them against the goals.
func NewReport(setting Setting, series []Series, figures []Figure, leftOut []string) *Report {
	r := &Report{Setting: setting, Figures: figures, LeftOut: leftOut}
	for _, s := range series {
		r.Rows = append(r.Rows, s.row())
	}
	for _, g := range goals {
		r.Goals = append(r.Goals, r.judge(g))
	}
	return r
}

// WriteFiles writes the report as JSON to path and its chart beside it, with the
// ending .svg. It makes the folder.
func (r *Report) WriteFiles(path string) error {
	text, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return fmt.Errorf("bench: encoding the figures: %w", err)
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return fmt.Errorf("bench: making a folder for the figures: %w", err)
	}
	if err := os.WriteFile(path, append(text, '\n'), 0o600); err != nil {
		return fmt.Errorf("bench: writing the figures: %w", err)
	}
	if err := os.WriteFile(ChartPath(path), r.Chart(), 0o600); err != nil {
		return fmt.Errorf("bench: writing the chart: %w", err)
	}
	return nil
}

// ChartPath is where WriteFiles puts the chart.
func ChartPath(path string) string {
	return path[:len(path)-len(filepath.Ext(path))] + ".svg"
}

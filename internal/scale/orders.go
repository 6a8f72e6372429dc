package scale

import "time"

// task is what the callers' process is to do.
type task string

const (
	taskHold    task = "hold"    // acquire Count leases and keep them
	taskDrop    task = "drop"    // release all leases that are kept
	taskAcquire task = "acquire" // acquire and release Count leases, Rate a second
	taskRun     task = "run"     // one-shot runs for a time, Concurrency at once
	taskStream  task = "stream"  // one exec in each of Count kept leases
)

// order is one task, a line of JSON on the callers' standard input.
type order struct {
	Task        task          `json:"task"`
	Count       int           `json:"count,omitempty"`
	Concurrency int           `json:"concurrency,omitempty"`
	Rate        float64       `json:"rate,omitempty"`
	For         time.Duration `json:"for,omitempty"`
	Source      string        `json:"source,omitempty"` // the program
	Output      int64         `json:"output,omitempty"` // how much it prints, in bytes
}

// outcome is what came of an order, a line of JSON on the callers' standard
// output.
type outcome struct {
	Done    int           `json:"done"`
	Failed  int           `json:"failed,omitempty"`
	Problem string        `json:"problem,omitempty"` // the first failure
	P50     time.Duration `json:"p50"`
	P99     time.Duration `json:"p99"`
	Max     time.Duration `json:"max"`
	Elapsed time.Duration `json:"elapsed"`
}

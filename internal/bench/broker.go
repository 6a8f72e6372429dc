package bench

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient"
)

// program is what every call runs, and answer what it prints.
const (
	program = "print(1+1)"
	answer  = "2"
)

// stopwatch notes when the first byte came.
type stopwatch struct {
	began time.Time
	first time.Duration
	text  strings.Builder
}

func (s *stopwatch) Write(p []byte) (int, error) {
	if s.first == 0 && len(p) > 0 {
		s.first = time.Since(s.began)
	}
	return s.text.Write(p)
}

func (s *stopwatch) sample() (Sample, error) {
	d := time.Since(s.began)
	if got := strings.TrimSpace(s.text.String()); got != answer {
		return Sample{}, fmt.Errorf("bench: the program printed %q, not %q", got, answer)
	}
	return Sample{FirstByte: s.first, Done: d}, nil
}

// Run makes one call through the broker: a fresh sandbox each time.
func Run(ctx context.Context, c *sandboxclient.Client, pool string) (Sample, error) {
	w := &stopwatch{began: time.Now()}
	if _, err := c.Run(ctx, sandboxclient.Code{Pool: pool, Language: "python", Source: program, Stdout: w}); err != nil {
		return Sample{}, fmt.Errorf("bench: a run: %w", err)
	}
	return w.sample()
}

// Exec makes one call in a lease that is held already.
func Exec(ctx context.Context, lease *sandboxclient.Lease) (Sample, error) {
	w := &stopwatch{began: time.Now()}
	cmd := lease.Script("python", program)
	cmd.Stdout = w
	if err := cmd.Run(ctx); err != nil {
		return Sample{}, fmt.Errorf("bench: an exec: %w", err)
	}
	return w.sample()
}

package bench

import (
	"context"
	"fmt"
	"strings"
	"time"
)

const (
	// settleTimeout bounds the wait until the pools have settled.
	settleTimeout = time.Minute
	// settlePause lies between two looks.
	settlePause = 50 * time.Millisecond
)

// look says what is not settled yet; an empty string is nothing.
type look func(ctx context.Context) (string, error)

// UnsettledError says that the pools did not come to rest in time.
type UnsettledError struct {
	After   time.Duration
	Missing []string
}

// Error names what is missing.
func (e *UnsettledError) Error() string {
	return fmt.Sprintf("bench: after %s the pools have not settled: %s", e.After, strings.Join(e.Missing, "; "))
}

// settle waits until no look finds anything any more. A call that is measured
// then finds the stock full and the processors idle, as it does when callers do
// not come faster than the pool refills.
func settle(ctx context.Context, looks ...look) error {
	began := time.Now()
	pause := time.NewTicker(settlePause)
	defer pause.Stop()
	for {
		var missing []string
		for _, l := range looks {
			what, err := l(ctx)
			if err != nil {
				return fmt.Errorf("bench: waiting for the pools to settle: %w", err)
			}
			if what != "" {
				missing = append(missing, what)
			}
		}
		if len(missing) == 0 {
			return nil
		}
		if time.Since(began) >= settleTimeout {
			return &UnsettledError{After: settleTimeout, Missing: missing}
		}
		select {
		case <-pause.C:
		case <-ctx.Done():
			return fmt.Errorf("bench: waiting for the pools to settle: %w", ctx.Err())
		}
	}
}

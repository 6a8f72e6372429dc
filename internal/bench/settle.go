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
	// settleRest is how long nothing may have been found: a pod that has just become
	// ready, and the spares in it, keep the processors busy for a while longer.
	settleRest = 500 * time.Millisecond
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

// settle waits until no look has found anything for a while. A call that is measured
// then finds the stock full and the processors idle, as it does when callers do
// not come faster than the pool refills.
func settle(ctx context.Context, looks ...look) error {
	began := time.Now()
	var since time.Time // when nothing was missing first
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
		switch {
		case len(missing) > 0:
			since = time.Time{}
		case since.IsZero():
			since = time.Now()
		case time.Since(since) >= settleRest:
			return nil
		}
		if len(missing) > 0 && time.Since(began) >= settleTimeout {
			return &UnsettledError{After: settleTimeout, Missing: missing}
		}
		select {
		case <-pause.C:
		case <-ctx.Done():
			return fmt.Errorf("bench: waiting for the pools to settle: %w", ctx.Err())
		}
	}
}

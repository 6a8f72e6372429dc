package bench

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

// until is a look that finds something until a time has passed.
func until(d time.Duration, what string) look {
	began := time.Now()
	return func(context.Context) (string, error) {
		if time.Since(began) < d {
			return what, nil
		}
		return "", nil
	}
}

func TestSettle(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		require.NoError(t, settle(t.Context(), until(0, "")), "nothing to wait for")
		require.Equal(t, settleRest, time.Since(began))
		began = time.Now()
		require.NoError(t, settle(t.Context(), until(time.Second, "the stock"), until(3*time.Second, "the warm pool")))
		require.InDelta(t, 3*time.Second+settleRest, time.Since(began), float64(settlePause))
	})
}

// What is missing again in between makes the rest begin anew.
func TestSettleIsRest(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		again := func(context.Context) (string, error) {
			if d := time.Since(began); d > settleRest/2 && d < settleRest {
				return "the stock", nil
			}
			return "", nil
		}
		require.NoError(t, settle(t.Context(), again))
		require.Equal(t, 2*settleRest, time.Since(began))
	})
}

func TestSettleIsBounded(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		began := time.Now()
		err := settle(t.Context(), until(time.Hour, "no node takes the pod"), until(time.Second, "the stock"))
		var unsettled *UnsettledError
		require.ErrorAs(t, err, &unsettled)
		require.Equal(t, []string{"no node takes the pod"}, unsettled.Missing, "it says what is missing")
		require.InDelta(t, settleTimeout, time.Since(began), float64(settlePause))
		require.ErrorContains(t, err, "no node takes the pod")
	})
}

func TestSettleGivesUp(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		require.ErrorIs(t, settle(ctx, until(time.Hour, "the stock")), context.DeadlineExceeded)
		fails := func(context.Context) (string, error) { return "", errFull }
		require.ErrorIs(t, settle(t.Context(), fails), errFull)
	})
}

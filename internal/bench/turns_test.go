package bench

import (
	"context"
	"errors"
	"io"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func quiet() *Progress { return NewProgress(io.Discard, false, time.Second) }

func never(context.Context) error { return nil }

func TestTurnsInterleave(t *testing.T) {
	t.Parallel()
	var order []string
	ways := []*way{}
	for _, w := range []struct {
		name  string
		count int
	}{{"job", 3}, {"run", 7}, {"rare", 1}, {"none", 0}} {
		ways = append(ways, &way{series: Series{Name: w.name}, count: w.count, call: func(context.Context) (Sample, error) {
			order = append(order, w.name)
			return Sample{Done: 1}, nil
		}})
	}
	begin := func(context.Context) error {
		order = append(order, "|")
		return nil
	}
	require.NoError(t, takeTurns(t.Context(), 3, begin, ways, quiet()))
	require.Equal(t, []string{"|", "job", "run", "run", "|", "job", "run", "run", "|", "job", "run", "run", "run", "rare"}, order)
	for i, want := range []int{3, 7, 1, 0} {
		require.Len(t, ways[i].series.Samples, want, "all of the calls, and no more")
	}
}

func TestRestIsNoPartOfASample(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var seen []time.Duration
		last := time.Now()
		w := &way{count: 3, rest: pause(time.Second), call: func(context.Context) (Sample, error) {
			seen = append(seen, time.Since(last))
			last = time.Now()
			return Sample{}, nil
		}}
		require.NoError(t, takeTurns(t.Context(), 1, never, []*way{w}, quiet()))
		require.Equal(t, []time.Duration{time.Second, time.Second, time.Second}, seen)
	})
}

func TestFailuresAreCounted(t *testing.T) {
	t.Parallel()
	n := 0
	w := &way{count: 10, call: func(context.Context) (Sample, error) {
		n++
		if n%2 == 0 {
			return Sample{}, errFull
		}
		return Sample{}, nil
	}}
	require.NoError(t, takeTurns(t.Context(), 2, never, []*way{w}, quiet()))
	require.Equal(t, 5, w.series.Failed)
	require.Len(t, w.series.Samples, 5)
}

// A way that always fails, each time after a long wait, must not hold up the rest.
func TestAWayThatAlwaysFailsIsGivenUp(t *testing.T) {
	t.Parallel()
	n := 0
	w := &way{count: 100, call: func(context.Context) (Sample, error) {
		n++
		return Sample{}, errFull
	}}
	require.NoError(t, takeTurns(t.Context(), 5, never, []*way{w}, quiet()))
	require.Equal(t, maxFailures, n)
	require.Equal(t, maxFailures, w.series.Failed)
}

func TestTurnsEnd(t *testing.T) {
	t.Parallel()
	t.Run("when interrupted", func(t *testing.T) {
		t.Parallel()
		ctx, cancel := context.WithCancel(t.Context())
		w := &way{count: 9, call: func(ctx context.Context) (Sample, error) {
			cancel()
			return Sample{}, ctx.Err()
		}}
		require.ErrorIs(t, takeTurns(ctx, 3, never, []*way{w}, quiet()), context.Canceled)
		require.Zero(t, w.series.Failed, "the call is not to blame")
	})
	t.Run("when a turn cannot begin", func(t *testing.T) {
		t.Parallel()
		require.ErrorIs(t, takeTurns(t.Context(), 1, func(context.Context) error { return errFull }, nil, quiet()), errFull)
	})
	t.Run("when there is no rest", func(t *testing.T) {
		t.Parallel()
		w := &way{count: 1, rest: func(context.Context) error { return errFull }}
		require.ErrorIs(t, takeTurns(t.Context(), 1, never, []*way{w}, quiet()), errFull)
	})
	t.Run("and each call has its bound", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			w := &way{count: 1, call: func(ctx context.Context) (Sample, error) {
				<-ctx.Done()
				return Sample{}, ctx.Err()
			}}
			began := time.Now()
			require.NoError(t, takeTurns(t.Context(), 1, never, []*way{w}, quiet()))
			require.Equal(t, CallTimeout, time.Since(began))
			require.Equal(t, 1, w.series.Failed)
		})
	})
}

func TestCleanupsRunBackwardsWhateverHappens(t *testing.T) {
	t.Parallel()
	var order []int
	var c cleanups
	for i := range 3 {
		c.add(func(context.Context) error {
			order = append(order, i)
			if i == 1 {
				return errFull
			}
			return nil
		})
	}
	require.ErrorIs(t, c.run(t.Context()), errFull)
	require.Equal(t, []int{2, 1, 0}, order)
	require.NoError(t, cleanups(nil).run(t.Context()))
}

// A turn's first call of a kind waits until all is settled, the next ones do not.
func TestSettledOnceATurn(t *testing.T) {
	t.Parallel()
	s := &Suite{}
	rests := 0
	rest := s.settledOnceBy(func(context.Context) error {
		rests++
		return nil
	}, nil)
	for turn := range 3 {
		s.turn = turn
		for range 4 {
			require.NoError(t, rest(t.Context()))
		}
	}
	require.Equal(t, 3, rests)
	failing := s.settledOnceBy(never, func(context.Context) error { return errFull })
	require.ErrorIs(t, failing(t.Context()), errFull)
}

// Whatever is measured ends, and a usual benchmark well before its bound.
func TestTheWholeIsBounded(t *testing.T) {
	t.Parallel()
	for name, counts := range map[string]Counts{"full": Full, "short": Short} {
		s := &Suite{broker: &Broker{}, held: &Held{}, peer: &Peer{}, o: Options{Counts: counts, NoStock: "none"}}
		s.plan()
		require.Greater(t, counts.bound(), startUp+3*s.expected(), name)
		require.Less(t, counts.bound(), startUp+5*s.expected(), name)
	}
	require.Less(t, Full.bound(), time.Hour)
	require.Equal(t, startUp, Counts{}.bound())
}

func TestSharedClock(t *testing.T) {
	t.Parallel()
	began := time.Now()
	came := began.Add(3 * time.Millisecond)
	at := func(d time.Duration) time.Time { return time.Unix(0, began.UnixNano()).Add(d) }
	whole, back, err := sharedClock(began, at(2*time.Millisecond), came)
	require.NoError(t, err)
	require.Equal(t, 3*time.Millisecond, whole.Done)
	require.Equal(t, time.Millisecond, back.Done)
	for _, d := range []time.Duration{-time.Microsecond, 3*time.Millisecond + time.Microsecond, time.Hour} {
		_, _, err := sharedClock(began, at(d), came)
		require.ErrorContains(t, err, "clock", "%s after the question", d)
	}
}

func TestEcho(t *testing.T) {
	t.Parallel()
	upper := func(ctx context.Context, e *echo) error {
		buf := make([]byte, maxLine)
		for {
			n, err := e.stdin.Read(buf)
			if err != nil {
				return nil
			}
			for _, b := range buf[:n] { // a byte at a time: lines may come in parts
				if _, err := e.Write([]byte{b}); err != nil {
					return err
				}
			}
		}
	}
	t.Run("answers", func(t *testing.T) {
		t.Parallel()
		e := startEcho(upper)
		for _, line := range []string{"one", "", "two"} {
			began := time.Now()
			got, at, err := e.line(t.Context(), line)
			require.NoError(t, err)
			require.Equal(t, line, got)
			require.False(t, at.Before(began))
		}
		e.close()
		_, _, err := e.line(t.Context(), "late")
		require.Error(t, err)
	})
	t.Run("ends", func(t *testing.T) {
		t.Parallel()
		e := startEcho(func(context.Context, *echo) error { return errFull })
		_, _, err := e.line(t.Context(), "x")
		require.Error(t, err)
		<-e.ended
		e.close()
	})
	t.Run("is silent", func(t *testing.T) {
		t.Parallel()
		e := startEcho(func(ctx context.Context, _ *echo) error {
			<-ctx.Done()
			return ctx.Err()
		})
		defer e.close()
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
		defer cancel()
		_, _, err := e.line(ctx, "x")
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
	t.Run("says too much", func(t *testing.T) {
		t.Parallel()
		e := startEcho(func(_ context.Context, e *echo) error {
			_, err := e.Write(make([]byte, maxLine+1))
			return errors.Join(err, io.ErrShortWrite)
		})
		<-e.ended
		require.ErrorContains(t, e.err, "longer")
		e = startEcho(func(_ context.Context, e *echo) error {
			_, err := e.Write([]byte("a\nb\n"))
			return err
		})
		<-e.ended
		require.ErrorContains(t, e.err, "more than it is asked")
	})
}

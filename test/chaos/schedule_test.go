package chaos

import (
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func deal(d *deck, n int) []Step {
	var steps []Step
	for range n {
		steps = append(steps, d.next())
	}
	return steps
}

func TestASeedIsRepeatable(t *testing.T) {
	t.Parallel()
	of := func(seed uint64, name string) []Step {
		return deal(newDeck(seed, name, time.Second, 5*time.Second, cheap, costly), 50)
	}
	require.Equal(t, of(7, "a"), of(7, "a"))
	require.NotEqual(t, of(7, "a"), of(8, "a"))
	require.NotEqual(t, of(7, "a"), of(7, "b"), "each deck has numbers of its own")

	programs := func(seed uint64) (all []Program) {
		r := randomOf(seed, "worker")
		for range 50 {
			all = append(all, drawProgram(r, "p", 10*time.Second))
		}
		return all
	}
	require.Equal(t, programs(7), programs(7))
	require.NotEqual(t, programs(7), programs(8))
}

func TestARoundLeavesNothingOut(t *testing.T) {
	t.Parallel()
	d := newDeck(7, "a", time.Second, 5*time.Second, cheap, costly)
	for range 3 {
		var got []FaultKind
		for _, s := range deal(d, len(cheap)+len(costly)) {
			got = append(got, s.Kind)
			require.GreaterOrEqual(t, s.After, time.Second)
			require.LessOrEqual(t, s.After, 5*time.Second)
			require.Positive(t, s.For)
			require.Positive(t, s.Bytes)
			require.NotEmpty(t, s.String())
		}
		want := slices.Concat(cheap, costly)
		slices.Sort(got)
		slices.Sort(want)
		require.Equal(t, want, got)
	}
}

//go:build e2e

package e2e

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbox-broker/sandbox-broker/internal/corpus"
)

// Programs behave alike in a spare interpreter and in one of their own.
func TestSpareCorpus(t *testing.T) {
	cases, err := corpus.Cases()
	require.NoError(t, err)
	lease, err := newClient(t).Acquire(within(t, time.Minute), slow)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, lease.Release(within(t, time.Minute))) })
	for _, p := range cases {
		t.Run(p.Name, func(t *testing.T) {
			switch {
			case p.PrintsID():
				t.Skip("it prints its exec's ID, which the broker chooses")
			case len(p.Code) == 0:
				t.Skip("the broker refuses empty code")
			}
			diff, err := p.CompareInLease(within(t, time.Minute), lease)
			require.NoError(t, err)
			require.Empty(t, diff)
		})
	}
}

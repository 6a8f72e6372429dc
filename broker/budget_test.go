package broker

import (
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// No tenant has more than its part, all together no more than all of it, and what is
// given back is there again.
func TestTheBudgetOfWaitingCode(t *testing.T) {
	var b budget
	const piece = 1 << 20
	fill := func(tenant string) (releases []func(), refused *wire.Error) {
		for {
			release, err := b.take(tenant, piece)
			if err != nil {
				return releases, wire.AsError(err)
			}
			releases = append(releases, release)
		}
	}
	ofA, e := fill("a")
	require.Len(t, ofA, tenantBudget/piece)
	require.Equal(t, wire.CodeExhausted, e.Code)
	require.Equal(t, "code", e.Field)
	require.EqualValues(t, tenantBudget, e.Limit)
	require.Positive(t, e.RetryAfterMS)
	ofB, _ := fill("b")
	require.Len(t, ofB, (waitingBudget-tenantBudget)/piece)
	none, e := fill("c")
	require.Empty(t, none)
	require.EqualValues(t, waitingBudget, e.Limit)
	for _, release := range append(ofA, ofB...) {
		release()
		release() // counts once
	}
	require.Zero(t, b.held)
	require.Empty(t, b.tenants)
	again, _ := fill("c")
	require.Len(t, again, tenantBudget/piece)
	_, err := b.take("c", 0)
	require.NoError(t, err, "what is nothing always fits")
}

// The budget takes the largest program that a pool can allow.
func TestTheLargestProgramFitsTheBudget(t *testing.T) {
	var b budget
	_, err := b.take("a", weight(&wire.Program{Argv: []string{string(make([]byte, wire.MaxControl))}}, make([]byte, wire.MaxCode)))
	require.NoError(t, err)
}

//go:build e2e

package e2e

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbox-broker/sandbox-broker/internal/hostile"
)

// Code that attacks its pod, or what runs it, harms its own lease at most: another one
// answers all the while, and the pod is gone when its lease is.
func TestHostileProgramsHarmTheirOwnLeaseAtMost(t *testing.T) {
	settle(t)
	c := newClient(t)
	honest, err := c.Acquire(within(t, time.Minute), fast)
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, honest.Release(within(t, time.Minute))) })
	witness := hostile.NewWitness(t, honest)
	for _, p := range hostile.Programs() {
		t.Run(p.Name, func(t *testing.T) {
			ctx := within(t, 2*time.Minute)
			lease, err := c.Acquire(ctx, slow)
			require.NoError(t, err)
			defer func() { require.NoError(t, lease.Release(within(t, time.Minute))) }()
			claim := onlyLease(ctx, t)
			pod := podOf(ctx, t, claim.Name)
			p.Attack(ctx, t, lease, witness, 30*time.Second)
			if p.Survives {
				next, err := lease.Script("shell", "echo fine").Output(ctx)
				require.NoError(t, err)
				require.Equal(t, "fine\n", string(next))
			}
			require.NoError(t, lease.Release(ctx))
			requireGone(t, claim, pod.Name, goneWithin)
		})
	}
}

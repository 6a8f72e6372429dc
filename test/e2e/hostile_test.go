//go:build e2e

package e2e

import (
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbox-broker/sandbox-broker/internal/hostile"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient"
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
			var out strings.Builder
			cmd := lease.Script("python", p.Source)
			cmd.Timeout = p.Timeout
			if p.Prints != "" {
				cmd.Stdout, cmd.Stderr = &out, &out
			}
			began, ended := time.Now(), make(chan error, 1)
			go func() { ended <- cmd.Run(ctx) }()
			n := witness.Until(t, ended)
			t.Logf("%s after %s: %s %s", n.Reason, time.Since(began).Round(10*time.Millisecond), n.Cause, n.Message)
			require.Contains(t, p.Reasons, n.Reason)
			require.Less(t, time.Since(began), p.Timeout+30*time.Second)
			if n.Reason == sandboxclient.ReasonLost {
				require.False(t, n.Complete)
			}
			if p.Prints != "" {
				require.Equal(t, p.Prints, out.String())
			}
			if p.Survives {
				require.True(t, n.Complete)
				next, err := lease.Script("shell", "echo fine").Output(ctx)
				require.NoError(t, err)
				require.Equal(t, "fine\n", string(next))
			}
			require.NoError(t, lease.Release(ctx))
			requireGone(t, claim, pod.Name, 3*goneWithin)
		})
	}
}

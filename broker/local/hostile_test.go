//go:build linux

package local_test

import (
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbox-broker/sandbox-broker/broker"
	"github.com/sandbox-broker/sandbox-broker/broker/local"
	"github.com/sandbox-broker/sandbox-broker/internal/hostile"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// Code that attacks its sandbox, or what runs it, harms its own lease at most: another
// one answers all the while, and nothing is left of the sandbox.
func TestHostileProgramsHarmTheirOwnLeaseAtMost(t *testing.T) {
	o := options(t, local.RuntimeRunsc, local.Pool{Name: "test", Warm: 1, Limits: local.Limits{Memory: 160 << 20, Processes: 64}})
	s := newSite(t, o, broker.PoolConfig{Name: "test", MaxSandboxes: 4})
	honest, err := s.Acquire(within(t, time.Minute), "test")
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, honest.Release(within(t, time.Minute))) })
	witness := hostile.NewWitness(t, honest)
	for _, p := range hostile.Programs() {
		t.Run(p.Name, func(t *testing.T) {
			ctx := within(t, 2*time.Minute)
			lease, err := s.Acquire(ctx, "test")
			require.NoError(t, err)
			defer func() { require.NoError(t, lease.Release(within(t, time.Minute))) }()
			n := p.Attack(ctx, t, lease, witness, 20*time.Second)
			if n.Reason == wire.ReasonLost {
				require.Equal(t, wire.CauseRunnerKilled, n.Cause)
			}
			if p.Survives {
				require.Eventually(t, func() bool { // the next spare may be at its start
					left, err := lease.Script("shell", "cat /proc/[0-9]*/comm | grep -c python").Output(ctx)
					return err == nil && string(left) == "1\n"
				}, 20*time.Second, 50*time.Millisecond, "nothing is left but the spare")
			}
			require.NoError(t, lease.Release(ctx))
			require.Eventually(t, func() bool {
				found, err := os.ReadDir(filepath.Join(o.StateDir, "sandboxes"))
				return err == nil && len(found) <= 2 // the witness's and a warm one
			}, time.Minute, 10*time.Millisecond, "nothing is left of the sandbox")
		})
	}
}

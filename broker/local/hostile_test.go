//go:build linux

package local_test

import (
	"os"
	"path/filepath"
	"strings"
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
			require.Less(t, time.Since(began), p.Timeout+20*time.Second)
			if n.Reason == wire.ReasonLost {
				require.Equal(t, wire.CauseRunnerKilled, n.Cause)
				require.False(t, n.Complete)
			}
			if p.Prints != "" {
				require.Equal(t, p.Prints, out.String())
			}
			if p.Survives {
				require.True(t, n.Complete)
				left, err := lease.Script("shell", "cat /proc/[0-9]*/comm | grep -c python").Output(ctx)
				require.Equal(t, "1\n", string(left), "%v: nothing is left but the spare", err)
			}
			require.NoError(t, lease.Release(ctx))
			require.Eventually(t, func() bool {
				found, err := os.ReadDir(filepath.Join(o.StateDir, "sandboxes"))
				return err == nil && len(found) <= 2 // the witness's and a warm one
			}, time.Minute, 10*time.Millisecond, "nothing is left of the sandbox")
		})
	}
}

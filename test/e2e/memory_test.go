//go:build e2e

package e2e

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbox-broker/sandbox-broker/internal/hostile"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient"
)

// A program that grows is ended by the runner, below the pod's limit: its output is
// whole, and the lease lives on. That one grows too fast for that is told alike.
func TestTheRunnerActsBeforeTheKernel(t *testing.T) {
	settle(t)
	ctx := within(t, 3*time.Minute)
	lease, err := newClient(t).Acquire(ctx, slow)
	require.NoError(t, err)
	defer func() { require.NoError(t, lease.Release(within(t, time.Minute))) }()
	grow := func(source string) (sandboxclient.Ending, string) {
		var out bytes.Buffer
		cmd := lease.Script("python", source)
		cmd.Stdout = &out
		n := ending(t, cmd.Run(ctx))
		t.Logf("%s: %s", n.Reason, n.Message)
		return n, out.String()
	}
	for range 2 {
		n, out := grow(hostile.GrowsSlowly)
		require.Equal(t, sandboxclient.ReasonOOM, n.Reason)
		require.Contains(t, n.Message, "the limit is 208 MiB", "256 MiB less the reserve")
		require.True(t, n.Complete)
		require.Equal(t, "up\n", out)
	}
	n, out := grow(hostile.GrowsAtOnce)
	require.Equal(t, sandboxclient.ReasonOOM, n.Reason)
	require.Equal(t, "up\n", out)
}

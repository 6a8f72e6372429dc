//go:build linux

package local_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbox-broker/sandbox-broker/broker/local"
)

// The runner shares its sandbox's processors with programs that take all they get. It
// still starts, times and ends other programs of the lease.
func TestTheRunnerAnswersWhileProgramsTakeEveryProcessor(t *testing.T) {
	l := acquire(t, newSite(t, options(t, local.RuntimeRunsc, local.Pool{Name: "test", Warm: 1, Limits: local.Limits{CPUs: 1}})))
	ctx := within(t, 4*time.Minute)
	busy := l.Script("shell", "for i in 1 2 3 4 5 6 7; do while :; do :; done & done; while :; do :; done")
	busy.Timeout = 20 * time.Second
	var took time.Duration
	ended := make(chan error, 1)
	go func() {
		began := time.Now()
		err := busy.Run(ctx)
		took = time.Since(began)
		ended <- err
	}()
	for range 5 {
		asked := time.Now()
		out, err := l.Script("shell", "echo here").Output(ctx)
		require.NoError(t, err)
		require.Equal(t, "here\n", string(out))
		require.Less(t, time.Since(asked), 30*time.Second)
	}
	require.ErrorContains(t, <-ended, "timeout")
	require.Less(t, took, time.Minute, "the deadline was kept")
}

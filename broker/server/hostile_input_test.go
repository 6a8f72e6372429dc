package server_test

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbox-broker/sandbox-broker/internal/hostile"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// A runner that gives credit for input and takes none holds up neither the deadline nor
// the broker.
func TestAForwardedFrameIsNotWaitedForForever(t *testing.T) {
	t.Parallel()
	s := newDividedSite(t, hostile.Execs(func(e *hostile.Exec) {
		e.Answer()
		e.Send(wire.Window{FD: wire.Stdin, Limit: wire.MaxWindow}.Frame(0))
		<-e.Gone() // and does not read
	}))
	// More than the runner's end buffers, and little enough that the rest may wait here.
	input := bytes.NewReader(make([]byte, 20*wire.MaxData))
	began := time.Now()
	_, err := s.client(tokenA).Run(deadline(t), sandboxclient.Code{
		Pool: liarPool, Language: "shell", Source: "cat", Timeout: 2 * time.Second, Stdin: input,
	})
	var exit *sandboxclient.ExitError
	require.ErrorAs(t, err, &exit)
	require.Equal(t, wire.ReasonTimeout, exit.Ending.Reason)
	// The channel it loses counts for a minute: see the broker's overtime.
	require.Less(t, time.Since(began), 100*time.Second)
}

package server_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// stdinCredit waits until the program has taken input up to acked.
func (r *raw) stdinCredit(acked uint64) wire.Window {
	r.t.Helper()
	for {
		w, err := wire.ParseWindow(r.until(wire.KindWindow))
		require.NoError(r.t, err)
		if w.FD == wire.Stdin && w.Acked >= acked {
			return w
		}
	}
}

// A client that comes back goes on with the input where the program stands.
func TestAttachGoesOnWithTheInput(t *testing.T) {
	cfg := pool()
	cfg.DetachGrace = 10 * time.Second
	s := newSite(t, cfg)
	conn := s.dial(tokenA)
	conn.request(1, wire.Request{Op: wire.OpRun, Pool: "test", Program: &wire.Program{Argv: []string{"cat"}, Stdin: true}}, "")
	var res wire.Response
	require.NoError(t, wire.Unmarshal(wire.KindResponse, conn.until(wire.KindResponse).Payload, &res))
	conn.stdinCredit(0)
	conn.send(wire.Frame{Kind: wire.KindStdin, Stream: 1, Payload: []byte("first ")})
	conn.until(wire.KindStdout) // the program has it
	_ = conn.Close()

	again := s.dial(tokenA)
	again.request(1, wire.Request{Op: wire.OpAttach, Exec: res.Exec, Stdout: &wire.Credit{Limit: 1000}}, "")
	require.EqualValues(t, 6, again.stdinCredit(0).Acked)
	again.send(wire.Frame{Kind: wire.KindStdin, Stream: 1, Offset: 6, Payload: []byte("second")})
	again.send(wire.Frame{Kind: wire.KindStdinEnd, Stream: 1, Offset: 12})
	out := ""
	for f := again.read(); f.Kind != wire.KindExit; f = again.read() {
		if f.Kind == wire.KindStdout {
			out += string(f.Payload)
		}
	}
	require.Equal(t, "first second", out)
}

package broker_test

import (
	"encoding/json"
	"strings"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sandbox-broker/sandbox-broker/internal/hostile"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// orders reads what a runner is told until it has a cancel.
func orders(t *testing.T, e *hostile.Exec) (signals []string) {
	for {
		f, err := e.In.Read()
		if err != nil {
			return signals
		}
		switch f.Kind {
		case wire.KindSignal:
			var s wire.Signal
			if err := json.Unmarshal(f.Payload, &s); err != nil {
				t.Error(err)
			}
			signals = append(signals, s.Name)
		case wire.KindCancel:
			return signals
		}
	}
}

// Must hold: a signal or a cancel that was written to a channel which turned out to be
// dead reaches the program over the next one. One without a number, which the runner
// would not know again, is not sent twice.
func TestOrdersOutliveTheirChannel(t *testing.T) {
	var mu sync.Mutex
	var channels [][]string
	lie := func(e *hostile.Exec) {
		answer(e, !e.Start.AttachOnly)
		got := orders(t, e)
		mu.Lock()
		channels = append(channels, got)
		n := len(channels)
		mu.Unlock()
		if n == 3 {
			e.Exit(wire.Ending{Reason: wire.ReasonCanceled})
			e.AwaitEnd()
		} // else the channel breaks, and nobody has acted on them
	}
	signal := func(number uint64, name string) wire.Frame {
		f := wire.JSONFrame(wire.KindSignal, 0, wire.Signal{Name: name})
		f.Offset = number
		return f
	}
	inLiar(t, lie, func(t *testing.T, lease string, do doer) {
		n := do(t.Context(), wire.Request{Op: wire.OpExec, Lease: lease, Program: program(0)},
			signal(1, "SIGHUP"), signal(0, "SIGWINCH"), signal(2, "SIGINT"), wire.Frame{Kind: wire.KindCancel}).ending
		require.Equal(t, wire.ReasonCanceled, n.Reason, n.Message)
		require.Equal(t, [][]string{{"SIGHUP", "SIGWINCH", "SIGINT"}, {"SIGHUP", "SIGINT"}, {"SIGHUP", "SIGINT"}}, channels)
	})
}

// Must hold: so does what was acknowledged. A client that has everything says it once,
// and a runner that does not hear it keeps the program waiting for room.
func TestAcknowledgementsOutliveTheirChannel(t *testing.T) {
	text := strings.Repeat("x", 100)
	heard := make(chan wire.Window, 2)
	lie := func(e *hostile.Exec) {
		answer(e, !e.Start.AttachOnly)
		if !e.Start.AttachOnly {
			e.Print(0, text)
		}
		for {
			f, err := e.In.Read()
			if err != nil {
				return
			}
			if f.Kind == wire.KindWindow {
				w, err := wire.ParseWindow(f)
				assert.NoError(t, err)
				heard <- w
				break
			}
		}
		if e.Start.AttachOnly {
			e.Exit(wire.Ending{Reason: wire.ReasonExited, StdoutBytes: uint64(len(text))})
			e.AwaitEnd()
		} // else the channel breaks, and the acknowledgement may be lost
	}
	inLiar(t, lie, func(t *testing.T, lease string, do doer) {
		w := wire.Window{FD: wire.Stdout, Acked: uint64(len(text)), Limit: 2 << 20}
		n := do(t.Context(), wire.Request{Op: wire.OpExec, Lease: lease, Program: program(0)}, w.Frame(0)).ending
		require.Equal(t, wire.ReasonExited, n.Reason, n.Message)
		require.Equal(t, []wire.Window{w, w}, []wire.Window{<-heard, <-heard})
	})
}

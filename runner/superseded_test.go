package runner_test

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbox-broker/sandbox-broker/internal/channel"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// awaitQuiet waits until the runner has written nothing for a while.
func (s *sandbox) awaitQuiet() {
	s.t.Helper()
	var before string
	same := 0
	require.Eventually(s.t, func() bool {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/io", s.cmd.Process.Pid))
		require.NoError(s.t, err)
		_, written, _ := strings.Cut(string(text), "wchar: ")
		written, _, _ = strings.Cut(written, "\n")
		if same++; written != before {
			before, same = written, 0
		}
		return same > 10
	}, soon, 20*time.Millisecond)
}

// Must hold: what a superseded reader acknowledges, be it on its way already, takes no
// output from the reader that came after it, and ends nobody's channel.
func TestASupersededReaderTakesNoOutputAway(t *testing.T) {
	s := startRunner(t, plainPath)
	first, second := s.open(), s.open()
	const (
		offset = 256 << 10 // where the second reader begins
		stolen = 512 << 10 // what the first one acknowledges after that
		whole  = 3_000_000
	)
	// Signals reach each process of the group.
	st := start(sh(`trap 'echo got >&2' USR1
(trap '' USR1; exec head -c 3000000 /dev/zero) &
(trap '' USR1; while [ ! -e more ]; do sleep 0.02; done; head -c 1500000 /dev/zero >&2; touch written) &
while [ ! -e go ]; do sleep 0.02; done
wait`))
	st.Reader = "first"
	a, err := first.Exec(deadline(t), "x", st, nil)
	require.NoError(t, err)
	defer a.Close()
	for got := 0; got < stolen; {
		got += len(next(t, a, wire.KindStdout).Payload)
	}
	require.NoError(t, a.Send(wire.Window{FD: wire.Stdout, Acked: offset, Limit: offset + wire.MaxWindow}.Frame(0)))
	// With both outputs to send, and nobody who takes them, the runner waits in the midst
	// of the first reader's stream: it is superseded, and its frames are still read.
	require.NoError(t, os.WriteFile(filepath.Join(s.dir, "more"), nil, 0o600))
	require.Eventually(t, func() bool {
		_, err := os.Stat(filepath.Join(s.dir, "written"))
		return err == nil
	}, soon, look)
	s.awaitQuiet()

	st.Reader, st.AttachOnly = "second", true
	st.Stdout = wire.Credit{Acked: offset, Limit: offset} // it comes to no output before the first one is heard
	b, err := second.Exec(deadline(t), "x", st, nil)
	require.NoError(t, err)
	defer b.Close()
	require.NoError(t, a.Send(wire.Window{FD: wire.Stdout, Acked: stolen, Limit: stolen + wire.MaxWindow}.Frame(0)))
	require.NoError(t, a.Send(wire.JSONFrame(wire.KindSignal, 0, wire.Signal{Name: "SIGUSR1"})))
	var stderr strings.Builder
	for !strings.Contains(stderr.String(), "got\n") { // the signal was, so the window before it was too
		stderr.Write(next(t, b, wire.KindStderr).Payload)
	}
	at := uint64(offset)
	credit := func() {
		require.NoError(t, b.Send(wire.Window{FD: wire.Stdout, Acked: at, Limit: at + wire.MaxWindow}.Frame(0)))
	}
	credit()
	for at < whole {
		f := next(t, b, wire.KindStdout)
		require.Equal(t, at, f.Offset)
		require.Empty(t, bytes.Trim(f.Payload, "\x00"))
		at += uint64(len(f.Payload))
		credit()
	}
	require.NoError(t, os.WriteFile(filepath.Join(s.dir, "go"), nil, 0o600))
	var n wire.Ending
	require.NoError(t, wire.Unmarshal(wire.KindExit, next(t, b, wire.KindExit).Payload, &n))
	require.EqualValues(t, whole, n.StdoutBytes)
	require.NotContains(t, s.log.String(), "panic")
	for _, c := range []*channel.Client{first, second} {
		_, err := c.Status(deadline(t))
		require.NoError(t, err, "both channels live on")
	}
}

package runner_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandbox-broker/sandbox-broker/internal/channel"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// next is the stream's next frame of a kind.
func next(t *testing.T, s *channel.ExecStream, k wire.Kind) wire.Frame {
	t.Helper()
	for {
		f, err := s.Recv()
		require.NoError(t, err)
		if f.Kind == k {
			return f
		}
	}
}

// A signal that comes again under its number is the same signal.
func TestASignalWithANumberIsSentOnce(t *testing.T) {
	s := startRunner(t)
	stream, err := s.open().Exec(deadline(t), "x", start(sh("trap 'echo got' USR1; echo begun; while [ ! -e go ]; do sleep 0.02; done; exit 0")), nil)
	require.NoError(t, err)
	next(t, stream, wire.KindStdout)
	seen := false
	for _, number := range []uint64{7, 7, 7, 0, 0, 8} {
		require.NoError(t, stream.Send(wire.Frame{Kind: wire.KindSignal, Offset: number, Payload: wire.Marshal(wire.Signal{Name: "SIGUSR1"})}))
		if number != 7 || !seen {
			seen = true
			require.Equal(t, "got\n", string(next(t, stream, wire.KindStdout).Payload))
		}
	}
	require.NoError(t, os.WriteFile(filepath.Join(s.dir, "go"), nil, 0o600))
	var n wire.Ending
	require.NoError(t, wire.Unmarshal(wire.KindExit, next(t, stream, wire.KindExit).Payload, &n))
	require.EqualValues(t, len("begun\n")+4*len("got\n"), n.StdoutBytes)
}

// The later reader keeps the output: one that it superseded cannot take it back over
// another stream, as a broker would try whose client is long gone.
func TestASupersededReaderStaysAway(t *testing.T) {
	s := startRunner(t)
	c := s.open()
	attach := func(reader string) *channel.ExecStream {
		st := start(sh("echo begun; while [ ! -e go ]; do sleep 0.02; done; echo done"))
		st.Reader = reader
		stream, err := c.Exec(deadline(t), "x", st, nil)
		require.NoError(t, err)
		return stream
	}
	first := attach("first")
	next(t, first, wire.KindStdout)
	second := attach("second")
	next(t, second, wire.KindStdout)
	next(t, first, wire.KindError)

	again := attach("first")
	var e wire.Error
	require.NoError(t, wire.Unmarshal(wire.KindError, next(t, again, wire.KindError).Payload, &e))
	require.Equal(t, wire.ReasonSuperseded, e.Reason)
	require.NoError(t, os.WriteFile(filepath.Join(s.dir, "go"), nil, 0o600))
	require.Equal(t, "done\n", string(next(t, second, wire.KindStdout).Payload))
	next(t, second, wire.KindExit)
}

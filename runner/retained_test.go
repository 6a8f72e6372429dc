package runner_test

import (
	"fmt"
	"io"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbox-broker/sandbox-broker/internal/channel"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// Must hold: many programs whose readers are gone fit into the sandbox's memory; another
// program goes on meanwhile, and each byte is there when a reader comes.
func TestManyUnreadProgramsFitTheSandbox(t *testing.T) {
	s := startRunner(t, plainPath)
	c := s.open()
	const (
		programs = 20
		each     = 2_500_000 // more than is kept of an output
		// What all share, and what is due to an output while it has a reader, which is
		// taken back when that has gone, and not what it has by then.
		most = 60 << 20
	)
	unread := start(sh(fmt.Sprintf("head -c %d /dev/zero & head -c %d /dev/zero >&2; wait", each, each)))
	unread.Stdout.Limit, unread.Stderr.Limit = 1, 1
	retained := func() int64 {
		st, err := c.Status(deadline(t))
		require.NoError(t, err)
		require.LessOrEqual(t, st.Retained, int64(most))
		return st.Retained
	}
	for i := range programs {
		st, err := c.Exec(deadline(t), fmt.Sprint("unread-", i), unread, nil)
		require.NoError(t, err)
		next(t, st, wire.KindResponse)
		st.Close()
	}
	for began := time.Now(); retained() < 30<<20; time.Sleep(10 * time.Millisecond) { // between two looks
		require.Less(t, time.Since(began), soon, "they use what there is")
	}

	late := start(sh("head -c 5000000 /dev/zero"))
	st, err := c.Exec(deadline(t), "late", late, nil)
	require.NoError(t, err)
	require.Equal(t, 5_000_000, drain(t, st).stdout)
	for i := range programs {
		unread.Stdout.Limit, unread.Stderr.Limit = wire.DefaultWindow, wire.DefaultWindow
		st, err := c.Exec(deadline(t), fmt.Sprint("unread-", i), unread, nil)
		require.NoError(t, err)
		got := drain(t, st)
		require.Equal(t, drained{each, each}, got)
		retained()
	}
	require.Zero(t, retained(), "memory stays taken")
}

// drained is how much came of each output.
type drained struct{ stdout, stderr int }

// drain reads a stream to its end as a client does that acknowledges half a window at a
// time, and confirms it.
func drain(t *testing.T, s *channel.ExecStream) drained {
	t.Helper()
	defer s.Close()
	var got drained
	acked := map[wire.FD]int{}
	take := func(fd wire.FD, sum *int, f wire.Frame) {
		require.EqualValues(t, *sum, f.Offset)
		if *sum += len(f.Payload); *sum-acked[fd] >= wire.AckDue {
			acked[fd] = *sum
			require.NoError(t, s.Send(wire.Window{FD: fd, Acked: uint64(*sum), Limit: uint64(*sum) + wire.DefaultWindow}.Frame(0)))
		}
	}
	for {
		f, err := s.Recv()
		require.NoError(t, err)
		switch f.Kind {
		case wire.KindStdout:
			take(wire.Stdout, &got.stdout, f)
		case wire.KindStderr:
			take(wire.Stderr, &got.stderr, f)
		case wire.KindExit:
			require.NoError(t, s.Send(wire.Frame{Kind: wire.KindDone}))
			_, err = s.Recv() // the exec is forgotten before the stream ends
			require.ErrorIs(t, err, io.EOF)
			return got
		case wire.KindError:
			t.Fatalf("the runner answered %s", f.Payload)
		}
	}
}

package runner

import (
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandbox-broker/sandbox-broker/internal/channel"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// readerAt is a reader of e that stands at an offset of its stdout, whose frames go nowhere.
func readerAt(e *execution, name string, offset uint64) *attachment {
	out := channel.NewFrameWriter(io.Discard, nil)
	return newAttachment(e, out, channel.Start{Reader: name, Stdout: wire.Credit{Acked: offset, Limit: offset + wire.MaxWindow}})
}

func TestAcknowledgementsAfterTheSwap(t *testing.T) {
	m := newRetained(maxRetained)
	e := &execution{out: newOutput("", &budget{}, m), err: newOutput("", &budget{}, m)}
	e.out.write('a', 10*chunkSize)
	a, b := readerAt(e, "a", 0), readerAt(e, "b", 4*chunkSize)
	require.NoError(t, e.attach(a, true))
	for range 10 {
		_, err := a.sendSome()
		require.NoError(t, err)
	}
	acked := func(n uint64) wire.Frame {
		return wire.Window{FD: wire.Stdout, Acked: n, Limit: n + wire.MaxWindow}.Frame(0)
	}
	require.NoError(t, a.handle(acked(4*chunkSize)))
	require.NoError(t, e.attach(b, false))
	require.NoError(t, a.handle(acked(8*chunkSize)), "it is late, not wrong")
	progress, err := b.sendSome()
	require.NoError(t, err)
	require.True(t, progress)
	require.EqualValues(t, 5*chunkSize, b.sent[wire.Stdout])

	require.Error(t, e.attach(readerAt(e, "c", 3*chunkSize), false), "this is gone")
	require.True(t, e.isReader(b), "who gets nothing takes nobody's place")
}

func TestOutputThatIsGoneIsAnError(t *testing.T) {
	o := newOutput("", &budget{}, newRetained(maxRetained))
	o.write('a', 3*chunkSize)
	require.NoError(t, o.ack(2*chunkSize))
	_, _, err := o.next(chunkSize, 3*chunkSize)
	require.ErrorIs(t, err, errSuperseded)
	b, _, err := o.next(2*chunkSize, 3*chunkSize)
	require.NoError(t, err)
	require.Len(t, b, chunkSize)
}

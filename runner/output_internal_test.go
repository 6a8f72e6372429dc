package runner

import (
	"bytes"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// write puts n bytes of a value into the output, as fill does.
func (o *output) write(v byte, n int) {
	for n > 0 {
		space := o.space()
		m := min(n, len(space))
		copy(space, bytes.Repeat([]byte{v}, m))
		o.commit(m)
		n -= m
	}
}

// Memory that is being sent is not used again, whoever acknowledges what is in it: a
// reader that was superseded may still be at it.
func TestLentOutputStaysAsItIs(t *testing.T) {
	o := newOutput("", &budget{}, newRetained(maxRetained))
	o.write('a', chunkSize)
	first, _, _ := o.next(0, chunkSize)
	require.Len(t, first, chunkSize)
	o.write('b', chunkSize)
	second, _, _ := o.next(chunkSize, 2*chunkSize)
	o.giveBack(chunkSize)
	require.NoError(t, o.ack(2*chunkSize-1)) // the first chunk goes
	o.write('c', 2*chunkSize)
	require.Equal(t, bytes.Repeat([]byte{'a'}, chunkSize), first, "it was still lent")
	require.Equal(t, byte('b'), second[0])

	o.giveBack(0)
	require.NoError(t, o.ack(3*chunkSize)) // two chunks that nobody has
	require.Len(t, o.memory.free, 2)
	o.write('d', chunkSize)
	require.Len(t, o.memory.free, 1, "one is used again")
	kept, _, _ := o.next(3*chunkSize, 3*chunkSize+1)
	require.Equal(t, []byte{'c'}, kept, "what is kept is as it was")
}

func TestAFloodIsReadInLargePieces(t *testing.T) {
	t.Parallel()
	var f flow
	for range 100 {
		require.Zero(t, f.pause(10, false), "somebody watches this")
	}
	for range 100 {
		require.Zero(t, f.pause(chunkSize, true), "there may be more already")
	}
	require.Equal(t, flowPause, f.pause(100, false))
	f.since = f.since.Add(-2 * flowTime)
	require.Zero(t, f.pause(100, false), "the flood is over")
	require.Less(t, flowPause, 5*time.Millisecond)
}

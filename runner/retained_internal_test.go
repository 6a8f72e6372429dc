package runner

import (
	"bytes"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbox-broker/sandbox-broker/internal/channel"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// flooded is an output that a program fills with n bytes of a value, while fill reads it.
type flooded struct {
	*output
	value byte
	stop  chan struct{}
	read  chan struct{} // closed when fill has read all of it
}

func flood(t *testing.T, m *retained, retention wire.Retention, value byte, n int) *flooded {
	t.Helper()
	r, w, err := os.Pipe()
	require.NoError(t, err)
	f := &flooded{output: newOutput(retention, &budget{}, m), value: value, stop: make(chan struct{}), read: make(chan struct{})}
	go func() {
		_, _ = w.Write(bytes.Repeat([]byte{value}, n))
		_ = w.Close()
	}()
	go func() {
		f.fill(r, new(atomic.Bool), f.stop, func() {})
		close(f.read)
	}()
	t.Cleanup(func() {
		select {
		case <-f.stop:
		default:
			close(f.stop)
		}
		<-f.read
		_ = r.Close()
	})
	return f
}

// kept is how many chunks the output has.
func (o *output) kept() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.chunks)
}

// awaitStill waits until no output takes or gives memory any more.
func (r *retained) awaitStill(t *testing.T) {
	t.Helper()
	before, same := int64(-1), 0
	require.Eventually(t, func() bool {
		if same++; r.bytes() != before {
			before, same = r.bytes(), 0
		}
		return same > 10
	}, 20*time.Second, 10*time.Millisecond)
}

// drain reads the output to its end as a client does that acknowledges each ackEvery bytes.
func (f *flooded) drain(t *testing.T, ackEvery uint64) (n int) {
	t.Helper()
	f.setRead(true)
	var at, acked uint64
	began := time.Now()
	for !f.over(at) {
		require.Less(t, time.Since(began), 20*time.Second, "reader and program wait for one another")
		b, from, err := f.next(at, at+chunkSize)
		require.NoError(t, err)
		if len(b) == 0 {
			time.Sleep(time.Millisecond)
			continue
		}
		require.Equal(t, at, from)
		require.Empty(t, bytes.Trim(b, string(f.value)))
		f.giveBack(at)
		n += len(b)
		at += uint64(len(b))
		if at-acked >= ackEvery {
			acked = at
			require.NoError(t, f.ack(at))
		}
	}
	return n
}

// Must hold: all outputs together stay within the sandbox's bound, and what is due to each
// is enough for a reader that acknowledges late. Nothing is lost, and nothing stays taken.
func TestOutputsShareABound(t *testing.T) {
	const (
		outputs = 24
		whole   = 3 << 20             // more than is kept of one
		limit   = 8 << 20 / chunkSize // of 72 MiB that they write
	)
	m := newRetained(limit)
	var floods []*flooded
	for i := range outputs {
		floods = append(floods, flood(t, m, "", byte('a'+i), whole))
	}
	m.awaitStill(t)
	require.LessOrEqual(t, m.bytes(), int64(limit+outputs*leastKept)*chunkSize)
	require.GreaterOrEqual(t, m.bytes(), int64(limit)*chunkSize)
	for _, f := range floods {
		require.NotZero(t, f.kept(), "each has something")
	}
	// The others keep all there is meanwhile.
	last := floods[outputs-1]
	require.Equal(t, whole, last.drain(t, wire.AckDue))
	last.drop()
	for _, f := range floods[:outputs-1] {
		require.Equal(t, whole, f.drain(t, wire.AckDue))
		f.drop()
	}
	require.Zero(t, m.bytes())
	require.Empty(t, m.waiting)
}

// What is forgotten gives its memory to those that wait for it, also while it is filled.
func TestForgottenOutputMakesRoom(t *testing.T) {
	const whole = 1 << 20
	m := newRetained(20) // more than the second writes, less than the first
	first := flood(t, m, "", 'a', 2*whole)
	m.awaitStill(t)
	second := flood(t, m, "", 'b', whole)
	m.awaitStill(t)
	require.Equal(t, leastKept, second.kept())
	close(first.stop)
	first.drop()
	<-second.read
	require.Equal(t, whole, second.drain(t, chunkSize))
	second.drop()
	require.Zero(t, m.bytes())
}

// A ring does not wait for memory: it drops its own earlier, and keeps its newest bytes.
func TestARingGivesUpItsOwn(t *testing.T) {
	m := newRetained(1)
	m.take(true, nil) // others have it all
	ring := flood(t, m, wire.RetainNewest, 'r', channel.Retention)
	<-ring.read
	require.Equal(t, leastKept, ring.kept())
	require.GreaterOrEqual(t, ring.end-ring.base, uint64(chunkSize))
	require.EqualValues(t, channel.Retention, ring.end)
	b, from, err := ring.next(0, channel.Retention)
	require.NoError(t, err)
	require.Equal(t, ring.base, from)
	require.Len(t, b, chunkSize)
}

package runner

import (
	"os"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sandbox-broker/sandbox-broker/internal/channel"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

const (
	// chunkSize is the unit of that memory and the most one read takes. A frame of it,
	// with all headers, just fits a pipe: the rest of a larger one would travel alone,
	// through every hop to the broker.
	chunkSize = wire.MaxData - 128
	// strayTimeout bounds the wait for the end of an output whose program, and
	// everything it started, is dead.
	strayTimeout = 2 * time.Second
	// A flood is flowBytes that came within flowTime. While it lasts, reads that do not
	// fill their space are flowPause apart: the pipe fills meanwhile, and each read, and
	// the frame it becomes, moves more. In gVisor it is their number that costs.
	flowBytes = 128 << 10
	flowTime  = 10 * time.Millisecond
	flowPause = time.Millisecond
)

// flow tells a flood from the output of a program that somebody watches.
type flow struct {
	since time.Time
	bytes int
}

// pause is how long the next read can wait after one that moved n bytes.
func (f *flow) pause(n int, filled bool) time.Duration {
	now := time.Now()
	if now.Sub(f.since) > flowTime {
		f.since, f.bytes = now, 0
	}
	f.bytes += n
	if filled || f.bytes < flowBytes {
		return 0
	}
	// Half of it counts for the next while: a flood does not start anew each time.
	f.since, f.bytes = now, flowBytes/2
	return flowPause
}

// budget is what a program may write to all of its outputs together.
type budget struct {
	limit uint64 // in bytes; 0: there is none
	used  atomic.Uint64
	over  func() // called when more was written, perhaps more than once
}

// take returns how many of n bytes that were written are within the budget: all of
// them, or those that it still had.
func (b *budget) take(n int) int {
	used := b.used.Add(uint64(n))
	if b.limit == 0 || used <= b.limit {
		return n
	}
	b.over()
	return n - int(min(uint64(n), used-b.limit))
}

// exceeded reports whether more was written.
func (b *budget) exceeded() bool { return b.limit > 0 && b.used.Load() > b.limit }

// output keeps what a program wrote to one descriptor: every byte from the
// acknowledged offset to what has been read so far. As a ring it keeps the newest
// bytes instead, whether they are acknowledged or not, and the program never waits.
type output struct {
	room   chan struct{} // signalled, with room for one, when there may be space again
	ring   bool
	budget *budget
	memory *retained

	mu      sync.Mutex // guards the rest
	chunks  [][]byte   // full chunks but the last; the first one starts at base
	base    uint64     // offset of the first chunk's first byte
	end     uint64     // offset after the last byte
	acked   uint64     // the reader wants nothing below it
	read    bool       // there is a reader
	lent    []uint64   // first offsets of chunks whose memory is in use elsewhere
	closed  bool       // nothing more will come
	dropped bool       // nobody wants any of it any more
}

func newOutput(retention wire.Retention, b *budget, m *retained) *output {
	return &output{room: make(chan struct{}, 1), ring: retention == wire.RetainNewest, budget: b, memory: m}
}

// fill reads r to its end, or until stop is closed, and calls wake after each
// piece. exited says that the program has ended, so that the end must be near.
func (o *output) fill(r *os.File, exited *atomic.Bool, stop <-chan struct{}, wake func()) {
	defer wake()
	defer o.close()
	var f flow
	for {
		space := o.space()
		if space == nil {
			select {
			case <-o.room:
				continue
			case <-stop:
				return
			}
		}
		if exited.Load() {
			_ = r.SetReadDeadline(time.Now().Add(strayTimeout))
		}
		n, err := r.Read(space)
		o.commit(o.budget.take(n)) // what lies beyond is read and dropped
		if err != nil {
			return // the end, or the time for it is over; what came is kept
		}
		wake()
		if pause := f.pause(n, n == len(space)); pause > 0 && !exited.Load() {
			time.Sleep(pause)
		} else if n < len(space) {
			runtime.Gosched() // the reader first: there is hardly more to read yet
		}
	}
}

// space returns free memory behind the last byte, or nil when channel.Retention is
// reached or the sandbox has no more. A ring makes room.
func (o *output) space() []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.ring && o.end-o.base >= channel.Retention && len(o.chunks) > 1 {
		o.dropFirst()
	}
	if o.dropped || !o.ring && o.end-o.acked >= channel.Retention {
		return nil
	}
	if n := len(o.chunks); n > 0 {
		if last := o.chunks[n-1]; len(last) < cap(last) {
			return last[len(last):cap(last)]
		}
	}
	chunk := o.newChunk()
	if chunk == nil {
		return nil
	}
	o.chunks = append(o.chunks, chunk)
	return chunk[:chunkSize]
}

// newChunk returns memory that the sandbox still has, or that is due to this output. A
// ring gives up its own for it. mu is held.
func (o *output) newChunk() []byte {
	if !o.ring {
		return o.memory.take(o.isDue(), o.room)
	}
	for {
		if chunk := o.memory.take(o.isDue(), nil); chunk != nil {
			return chunk
		}
		o.dropFirst() // it has some: else one would be due
	}
}

// isDue reports whether the output may have one more chunk whatever the others have. mu
// is held.
func (o *output) isDue() bool {
	if o.read {
		return len(o.chunks) < leastRead
	}
	return len(o.chunks) < leastKept
}

// setRead notes whether there is a reader.
func (o *output) setRead(read bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.read = read
	nudge(o.room) // more is due to an output with a reader
}

// dropFirst drops the oldest chunk. Its memory is used again unless it is in use. mu is
// held.
func (o *output) dropFirst() {
	chunk := o.chunks[0]
	if slices.Contains(o.lent, o.base) {
		chunk = nil
	}
	o.chunks[0] = nil
	o.chunks = o.chunks[1:]
	o.base += chunkSize
	o.memory.put(chunk)
}

// drop gives all memory back: the exec is forgotten.
func (o *output) drop() {
	o.mu.Lock()
	defer o.mu.Unlock()
	if n := len(o.chunks); n > 0 && !o.closed { // fill may be writing to it
		o.lent = append(o.lent, o.base+uint64(n-1)*chunkSize)
	}
	for len(o.chunks) > 0 {
		o.dropFirst()
	}
	o.base, o.dropped = o.end, true
	o.memory.leave(o.room)
}

// commit makes the first n bytes of the space part of the output. Only fill
// calls it, so the space is still the last chunk's.
func (o *output) commit(n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.dropped {
		return
	}
	last := len(o.chunks) - 1
	o.chunks[last] = o.chunks[last][:len(o.chunks[last])+n]
	o.end += uint64(n)
}

func (o *output) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
}

// next lends the bytes from offset on, below limit and at most one chunk. They stay
// valid until giveBack(from). They start at from, which is larger than offset if a
// ring has dropped what lies between. What another reader has acknowledged is gone, and
// asking for it is an error.
func (o *output) next(offset, limit uint64) (b []byte, from uint64, err error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if offset >= o.end {
		return nil, offset, nil
	}
	switch {
	case offset >= o.base:
	case o.ring:
		offset = o.base
	default:
		return nil, offset, errSuperseded
	}
	if limit <= offset || offset == o.end {
		return nil, offset, nil
	}
	i, in := (offset-o.base)/chunkSize, (offset-o.base)%chunkSize
	b = o.chunks[i][in:]
	if room := limit - offset; uint64(len(b)) > room {
		b = b[:room]
	}
	o.lent = append(o.lent, o.base+i*chunkSize)
	return b, offset, nil
}

// giveBack returns what next lent, by its first offset.
func (o *output) giveBack(from uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	// Chunks are chunkSize apart, from 0 on.
	if i := slices.Index(o.lent, from-from%chunkSize); i >= 0 {
		o.lent = slices.Delete(o.lent, i, i+1)
	}
}

// over reports whether offset is the end for ever.
func (o *output) over(offset uint64) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return offset >= o.end && o.closed
}

// bounds returns the first offset at which a reader may begin and the end so far. In
// a ring that is any: where the bytes are gone, it goes on behind them.
func (o *output) bounds() (first, end uint64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.ring {
		return 0, o.end
	}
	return o.acked, o.end
}

// ack drops what lies below offset. Offsets already acknowledged are stale and
// ignored; one beyond what was written is an error.
func (o *output) ack(offset uint64) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if offset > o.end {
		return wire.Invalid("window.acked", int64(o.end), "an acknowledgement of %d bytes goes beyond the %d that were written", offset, o.end)
	}
	if offset <= o.acked {
		return nil
	}
	o.acked = offset
	// Full chunks alone: fill may be writing to the last one while it has room.
	for !o.ring && o.base+chunkSize <= offset {
		o.dropFirst()
	}
	nudge(o.room)
	return nil
}

package runner

import (
	"errors"
	"io"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/sandbox-broker/sandbox-broker/internal/channel"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

const (
	// chunkSize is the unit of that memory and the most one read takes.
	chunkSize = wire.MaxData
	// strayTimeout bounds the wait for the end of an output whose program, and
	// everything it started, is dead.
	strayTimeout = 2 * time.Second
)

// output keeps what a program wrote to one descriptor: every byte from the
// acknowledged offset to what has been read so far. As a ring it keeps the newest
// bytes instead, whether they are acknowledged or not, and the program never waits.
type output struct {
	room chan struct{} // signalled, with room for one, when bytes are acknowledged
	ring bool

	mu     sync.Mutex // guards the rest
	chunks [][]byte   // full chunks but the last; the first one starts at base
	base   uint64     // offset of the first chunk's first byte
	end    uint64     // offset after the last byte
	acked  uint64     // the reader wants nothing below it
	closed bool       // nothing more will come
}

func newOutput(retention wire.Retention) *output {
	return &output{room: make(chan struct{}, 1), ring: retention == wire.RetainNewest}
}

// fill reads r to its end, or until stop is closed, and calls wake after each
// piece. exited says that the program has ended, so that the end must be near.
func (o *output) fill(r *os.File, exited *atomic.Bool, stop <-chan struct{}, wake func()) {
	defer wake()
	defer o.close()
	defer func() { _ = r.Close() }()
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
		o.commit(n)
		if err != nil {
			if errors.Is(err, io.EOF) || errors.Is(err, os.ErrClosed) || errors.Is(err, os.ErrDeadlineExceeded) {
				return
			}
			return // a pipe has no other lasting error; what came is kept
		}
		wake()
	}
}

// space returns free memory behind the last byte, or nil when channel.Retention is
// reached. A ring makes room.
func (o *output) space() []byte {
	o.mu.Lock()
	defer o.mu.Unlock()
	for o.ring && o.end-o.base >= channel.Retention && len(o.chunks) > 1 {
		o.dropFirst()
	}
	if !o.ring && o.end-o.acked >= channel.Retention {
		return nil
	}
	if n := len(o.chunks); n > 0 {
		if last := o.chunks[n-1]; len(last) < cap(last) {
			return last[len(last):cap(last)]
		}
	}
	o.chunks = append(o.chunks, make([]byte, 0, chunkSize))
	return o.chunks[len(o.chunks)-1][:chunkSize]
}

// commit makes the first n bytes of the space part of the output. Only fill
// calls it, so the space is still the last chunk's.
func (o *output) commit(n int) {
	o.mu.Lock()
	defer o.mu.Unlock()
	last := len(o.chunks) - 1
	o.chunks[last] = o.chunks[last][:len(o.chunks[last])+n]
	o.end += uint64(n)
}

func (o *output) close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.closed = true
}

// next returns the bytes from offset on, below limit and at most one chunk. They
// stay valid: memory is dropped, never reused. They start at from, which is larger
// than offset if a ring has dropped what lies between. done says that offset is the
// end for ever.
func (o *output) next(offset, limit uint64) (b []byte, from uint64, done bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if offset >= o.end {
		return nil, offset, o.closed
	}
	if o.ring {
		offset = max(offset, o.base)
	}
	i, in := (offset-o.base)/chunkSize, (offset-o.base)%chunkSize
	b = o.chunks[i][in:]
	if limit <= offset {
		return nil, offset, false
	}
	if room := limit - offset; uint64(len(b)) > room {
		b = b[:room]
	}
	return b, offset, false
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

// dropFirst drops the oldest chunk. mu is held.
func (o *output) dropFirst() {
	o.chunks[0] = nil
	o.chunks = o.chunks[1:]
	o.base += chunkSize
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
	// The last chunk stays while it has room: fill may be writing to it.
	for !o.ring && len(o.chunks) > 1 && o.base+chunkSize <= offset {
		o.dropFirst()
	}
	select {
	case o.room <- struct{}{}:
	default:
	}
	return nil
}

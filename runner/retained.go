package runner

import (
	"sync"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

const (
	// maxRetained bounds what a sandbox keeps of all outputs together, in chunks. One
	// output may have channel.Retention, but 128 of them would have all of the 256 MiB that
	// a pod of deploy/ is given; these 32 MiB are enough for eight programs that nobody reads.
	maxRetained = 32 << 20 / chunkSize
	// leastKept is what an output may keep whatever the others have, in chunks: a ring still
	// has the newest 64 KiB when it has dropped one of two.
	leastKept = 2
	// leastRead is the same while somebody reads it. A reader that has everything
	// acknowledges it when it has wire.AckDue: until then the program must be able to
	// write, or both wait for ever. Acknowledged bytes can fill most of one chunk.
	leastRead = wire.AckDue/chunkSize + 2
	// maxFreeChunks bounds the memory that is kept to be used again: what fast readers
	// leave unread. New memory means page faults, which are dear in gVisor.
	maxFreeChunks = 16
)

// retained is the memory of all outputs of a sandbox.
type retained struct {
	limit int // in chunks

	mu      sync.Mutex // guards the rest; after an output's
	used    int        // in chunks; what is due to an output anyway may go beyond limit
	free    [][]byte
	waiting map[chan struct{}]struct{} // the room of outputs that got none
}

func newRetained(limit int) *retained {
	return &retained{limit: limit, waiting: map[chan struct{}]struct{}{}}
}

// take returns an empty chunk, or nil if none is left. due says that there is one in any
// case. Else room, if there is one, is signalled once when it can be tried again.
func (r *retained) take(due bool, room chan struct{}) []byte {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.used >= r.limit && !due {
		if room != nil {
			r.waiting[room] = struct{}{}
		}
		return nil
	}
	r.used++
	if n := len(r.free); n > 0 {
		chunk := r.free[n-1]
		r.free = r.free[:n-1]
		return chunk
	}
	return make([]byte, 0, chunkSize)
}

// put takes back one chunk; nil: its memory cannot be used again.
func (r *retained) put(chunk []byte) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.used--
	if chunk != nil && len(r.free) < maxFreeChunks {
		r.free = append(r.free, chunk[:0])
	}
	if r.used >= r.limit {
		return
	}
	for room := range r.waiting {
		nudge(room)
	}
	clear(r.waiting)
}

// leave ends the wait of an output.
func (r *retained) leave(room chan struct{}) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.waiting, room)
}

// bytes is how much memory the outputs have.
func (r *retained) bytes() int64 {
	r.mu.Lock()
	defer r.mu.Unlock()
	return int64(r.used) * chunkSize
}

// nudge leaves a token in a channel with room for one.
func nudge(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

package sandboxclient

import (
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

const (
	// inputBuffer bounds one Read from the caller's Stdin, in bytes.
	inputBuffer = 32 << 10
	// maxEmptyReads is after how many Reads without bytes or error a reader is
	// given up.
	maxEmptyReads = 100
)

// input is a program's stdin. One goroutine reads it from the caller, as far as the
// broker grants credit; one sends it. What the program has not taken yet is kept,
// because it is sent again when the program is reached over another connection: at
// most a window, wire.MaxWindow.
type input struct {
	mu      sync.Mutex // guards what follows
	changed sync.Cond  // something of it is new

	leg    *stream // what carries the input now
	placed bool    // its broker has said where the program stands
	fresh  bool    // no broker has said so yet

	kept  []byte // the bytes from acked to got
	acked uint64 // the program has taken all below
	sent  uint64 // sent on this leg
	got   uint64 // read from the caller; below acked while what the program has already is skipped
	limit uint64 // how far the broker takes bytes

	whole   bool // got is the input's length
	told    bool // the leg has been told so
	over    bool // the program has ended
	reading bool // the reader is in the caller's Read
	err     error

	idle chan struct{} // closed when the reader has returned
}

func newInput() *input {
	in := &input{fresh: true, idle: make(chan struct{})}
	in.changed.L = &in.mu
	return in
}

// join makes leg the stream that carries the input. Nothing is sent on it before
// its broker has said where the program stands.
func (in *input) join(leg *stream) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.leg, in.placed, in.told = leg, false, false
}

// grant takes a window for the input from leg's broker: what the program has taken
// is dropped, and more may be sent. One that came late lowers nothing.
func (in *input) grant(leg *stream, w wire.Window) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if leg != in.leg {
		return nil
	}
	if w.Acked > max(in.got, in.acked) && !in.fresh {
		return protocolErrorf("it acknowledged %d bytes of stdin, but there are %d", w.Acked, in.got)
	}
	if w.Acked > in.acked {
		in.kept = in.kept[min(w.Acked-in.acked, uint64(len(in.kept))):]
		in.acked = w.Acked
	}
	if in.placed {
		in.limit = max(in.limit, w.Limit)
	} else {
		in.placed, in.fresh = true, false
		in.sent, in.limit = in.acked, w.Limit
	}
	in.sent = max(in.sent, in.acked)
	in.changed.Broadcast()
	return nil
}

// end stops both goroutines; a Read in progress is left alone.
func (in *input) end() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.over = true
	in.changed.Broadcast()
}

// beginRead waits for credit beyond what was read and says how much there is. It
// is 0 when the program has ended: then nothing may be read any more.
func (in *input) beginRead() int {
	in.mu.Lock()
	defer in.mu.Unlock()
	for !in.over && in.limit <= in.got {
		in.changed.Wait()
	}
	if in.over {
		return 0
	}
	in.reading = true
	return int(min(in.limit-in.got, inputBuffer))
}

// endRead keeps what was read, but for what the program has already.
func (in *input) endRead(p []byte) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.reading = false
	if skip := in.acked - min(in.acked, in.got); skip < uint64(len(p)) {
		in.kept = append(in.kept, p[skip:]...)
	}
	in.got += uint64(len(p))
	in.changed.Broadcast()
}

// settle waits for the reader after the program's end, unless it is in a Read,
// which may block for ever. It returns the error of reading, if there was one.
func (in *input) settle() error {
	in.mu.Lock()
	reading := in.reading
	in.mu.Unlock()
	if !reading {
		<-in.idle
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.err
}

// read takes what r has, as credit allows. It returns at the input's end, after the
// program's end, or when a Read then in progress returns. If abort is not nil it is
// given the error of a reader that fails, and the input has no end.
func (in *input) read(r io.Reader, abort func(error)) {
	defer close(in.idle)
	buf := make([]byte, inputBuffer)
	for empty := 0; ; {
		room := in.beginRead()
		if room == 0 {
			return
		}
		n, err := r.Read(buf[:room])
		in.endRead(buf[:n])
		if n > 0 {
			empty = 0
		} else if err == nil {
			if empty++; empty >= maxEmptyReads {
				err = io.ErrNoProgress
			}
		}
		if err == nil {
			continue
		}
		if !errors.Is(err, io.EOF) {
			err = fmt.Errorf("sandboxclient: reading the program's stdin: %w", err)
			in.fail(err)
			if abort != nil {
				abort(err)
				return
			}
		}
		in.finish()
		return
	}
}

func (in *input) fail(err error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.err = err
}

// finish says that all of the input was read.
func (in *input) finish() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.whole = true
	in.changed.Broadcast()
}

// send sends the input, and again on each new leg what the program lacks, until the
// program has ended.
func (in *input) send() {
	for {
		leg, f := in.next()
		if leg == nil {
			return
		}
		leg.send(f)
	}
}

// next waits for a frame that is due; the leg is nil at the program's end.
func (in *input) next() (*stream, wire.Frame) {
	in.mu.Lock()
	defer in.mu.Unlock()
	for ; !in.over; in.changed.Wait() {
		if !in.placed {
			continue
		}
		if end := min(in.got, in.limit, in.sent+wire.MaxData); in.sent < end {
			// What is kept is never written again, so the frame may share it.
			f := wire.Frame{Kind: wire.KindStdin, Offset: in.sent, Payload: in.kept[in.sent-in.acked : end-in.acked]}
			in.sent = end
			return in.leg, f
		}
		if in.whole && in.sent >= in.got && !in.told {
			in.told = true
			return in.leg, wire.Frame{Kind: wire.KindStdinEnd, Offset: in.got}
		}
	}
	return nil, wire.Frame{}
}

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

// input is the credit for a program's stdin, and the state of its copier.
type input struct {
	mu      sync.Mutex    // guards what follows
	changed chan struct{} // a token lies here when there is something new; capacity 1
	limit   uint64        // how far the broker takes bytes
	over    bool          // the program has ended
	reading bool          // the copier is in the caller's Read
	err     error         // what reading failed with

	idle chan struct{} // closed when the copier has returned
}

func newInput() *input {
	return &input{changed: make(chan struct{}, 1), idle: make(chan struct{})}
}

// grant raises the limit; one that came late lowers nothing.
func (in *input) grant(limit uint64) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.limit = max(in.limit, limit)
	in.wake()
}

// end stops the copier.
func (in *input) end() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.over = true
	in.wake()
}

func (in *input) wake() {
	select {
	case in.changed <- struct{}{}:
	default:
	}
}

// beginRead waits for credit beyond offset and says how much there is. It is 0
// when the program has ended: then nothing may be read any more.
func (in *input) beginRead(offset uint64) int {
	for {
		in.mu.Lock()
		switch {
		case in.over:
			in.mu.Unlock()
			return 0
		case in.limit > offset:
			in.reading = true
			n := min(in.limit-offset, inputBuffer)
			in.mu.Unlock()
			return int(n)
		}
		in.mu.Unlock()
		<-in.changed
	}
}

func (in *input) endRead() {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.reading = false
}

// settle waits for the copier after the program's end, unless it is in a Read,
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

// copy sends what r has, as credit allows, then the end of input. It returns
// after the program has ended, or when a Read then in progress returns. If abort
// is not nil it is given the error of a reader that fails, and no end is sent.
func (in *input) copy(r io.Reader, send func(wire.Frame), abort func(error)) {
	defer close(in.idle)
	buf := make([]byte, inputBuffer)
	var offset uint64
	for empty := 0; ; {
		room := in.beginRead(offset)
		if room == 0 {
			return
		}
		n, err := r.Read(buf[:room])
		in.endRead()
		if n > 0 {
			send(wire.Frame{Kind: wire.KindStdin, Offset: offset, Payload: buf[:n]})
			offset += uint64(n)
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
		send(wire.Frame{Kind: wire.KindStdinEnd, Offset: offset})
		return
	}
}

func (in *input) fail(err error) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.err = err
}

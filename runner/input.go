package runner

import (
	"os"
	"sync"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// stdinWindow bounds the input that waits in the runner for a program to read
// it, in bytes.
const stdinWindow = 256 << 10

// input passes bytes to a program's standard input. What the program has not
// taken is bounded by the window, so accepting never blocks.
type input struct {
	wake func() // called when the window has moved
	more chan struct{}

	mu      sync.Mutex // guards the rest
	pending [][]byte
	got     uint64 // offset after the last byte accepted
	taken   uint64 // offset after the last byte in the pipe
	ended   bool   // no more will come
	broken  bool   // the program reads no more
}

func newInput(wake func()) *input { return &input{wake: wake, more: make(chan struct{}, 1)} }

// accept takes bytes at offset. Bytes it has already are skipped: a client that
// came back sends from the last acknowledgement.
func (in *input) accept(offset uint64, b []byte) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	switch {
	case offset > in.got:
		return wire.Invalid("stdin.offset", int64(in.got), "stdin at offset %d leaves a gap after the %d bytes received; frames are out of order", offset, in.got)
	case in.ended && offset+uint64(len(b)) > in.got:
		return wire.Invalid("stdin.offset", int64(in.got), "stdin at offset %d comes after its end at %d", offset, in.got)
	case offset+uint64(len(b)) > in.taken+stdinWindow:
		return wire.Invalid("stdin", stdinWindow, "stdin up to offset %d exceeds the credit granted, which ends at %d", offset+uint64(len(b)), in.taken+stdinWindow)
	case offset+uint64(len(b)) <= in.got:
		return nil
	}
	b = b[in.got-offset:]
	in.got += uint64(len(b))
	if !in.broken {
		in.pending = append(in.pending, append([]byte(nil), b...))
	}
	in.signal()
	return nil
}

// end says that the input is length bytes long.
func (in *input) end(length uint64) error {
	in.mu.Lock()
	defer in.mu.Unlock()
	if length != in.got {
		return wire.Invalid("stdin_end.offset", int64(in.got), "the end of stdin at %d does not match the %d bytes received", length, in.got)
	}
	in.ended = true
	in.signal()
	return nil
}

func (in *input) signal() {
	select {
	case in.more <- struct{}{}:
	default:
	}
}

// window is what the client may send now.
func (in *input) window() wire.Window {
	in.mu.Lock()
	defer in.mu.Unlock()
	return wire.Window{FD: wire.Stdin, Acked: in.taken, Limit: in.taken + stdinWindow}
}

// feed writes the input to w and closes it at its end, or when stop is closed:
// then the program has ended, or SIGKILL is on its way to it. A living program
// sees no end but the one that the client has sent: File takes it for the word
// that a content is whole.
func (in *input) feed(w *os.File, stop <-chan struct{}) {
	defer func() { _ = w.Close() }()
	for {
		b, ended := in.take()
		if b == nil {
			if ended {
				return
			}
			select {
			case <-in.more:
				continue
			case <-stop:
				return
			}
		}
		_, err := w.Write(b)
		in.took(len(b), err != nil)
		in.wake()
		if err != nil {
			return // the program closed its input; what comes is dropped
		}
	}
}

func (in *input) take() (b []byte, ended bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	if len(in.pending) == 0 {
		return nil, in.ended
	}
	b = in.pending[0]
	in.pending = in.pending[1:]
	return b, false
}

func (in *input) took(n int, broken bool) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.taken += uint64(n)
	if broken {
		in.broken, in.pending = true, nil
	}
}

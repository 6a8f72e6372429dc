package sandboxclient

import (
	"sync"
	"time"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// stream is one stream of a connection. The connection's reader fills it; the
// goroutine that opened it waits on its channels and calls finish at the end.
type stream struct {
	out *output // the program's output; nil for calls that only answer
	in  *input  // its input; nil for those calls, and without one

	// named is called with the response of a program; it must not block.
	named func(*wire.Response)

	responded chan struct{} // closed with the response, or with the end if there is none
	ended     chan struct{} // closed when the broker's last frame has come, or the connection is lost

	conn *conn  // set, with id, when the request is sent
	id   uint32 //
	over bool   // nothing more may be sent; guarded by the connection's write lock

	mu     sync.Mutex // guards what follows
	result streamResult
	done   bool // ended is closed
}

// streamResult is what a stream has brought.
type streamResult struct {
	response *wire.Response // nil before it came
	ending   *wire.Ending   // nil unless a program ended
	refused  error          // the broker's Error for this stream
	lost     error          // why the connection ended under the stream

	// When the response, the first output and the end came; zero if they did not.
	responseAt, firstByteAt, endAt time.Time
}

// newCall makes a stream for a request that is only answered.
func newCall() *stream {
	return &stream{responded: make(chan struct{}), ended: make(chan struct{})}
}

// outcome is what has come so far; after ended it does not change.
func (s *stream) outcome() streamResult {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.result
}

// send sends a frame of the stream; after the end it does nothing.
func (s *stream) send(f wire.Frame) { s.conn.send(s, f) }

// cancel asks the broker to end what the stream stands for.
func (s *stream) cancel() { s.send(wire.Frame{Kind: wire.KindCancel}) }

// finish gives the stream's room back, and confirms an ending that came; false if that
// was not possible.
func (s *stream) finish() bool {
	if s.outcome().ending != nil {
		return s.conn.finish(s, &wire.Frame{Kind: wire.KindDone})
	}
	return s.conn.finish(s, nil)
}

// receive takes a frame from the reader. It does not block; an error is the
// broker's mistake and ends the connection.
func (s *stream) receive(f wire.Frame) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.done {
		return nil
	}
	switch f.Kind {
	case wire.KindError:
		e := decodeError(f)
		if wire.AsError(e) == nil {
			return e // it is not an error frame at all
		}
		s.result.refused = e
		s.endLocked()
		return nil
	case wire.KindResponse:
		return s.receiveResponse(f)
	case wire.KindStdout, wire.KindStderr, wire.KindDiscarded, wire.KindExit, wire.KindWindow:
		if s.out == nil {
			return protocolErrorf("it sent a %s on a stream without a program", f.Kind)
		}
		if s.result.response == nil {
			return protocolErrorf("it sent a %s before the response", f.Kind)
		}
		return s.receiveExec(f)
	default:
		return protocolErrorf("it sent a %s, which only clients send", f.Kind)
	}
}

func (s *stream) receiveResponse(f wire.Frame) error {
	if s.result.response != nil {
		return protocolErrorf("it sent a second response on a stream")
	}
	r := new(wire.Response)
	if err := decode(f, r); err != nil {
		return err
	}
	s.result.response, s.result.responseAt = r, time.Now()
	if s.out == nil {
		s.endLocked()
		return nil
	}
	s.named(r)
	close(s.responded)
	return nil
}

// receiveExec handles the frames of a running program.
func (s *stream) receiveExec(f wire.Frame) error {
	switch f.Kind {
	case wire.KindStdout:
		return s.receiveOutput(wire.Stdout, f)
	case wire.KindStderr:
		return s.receiveOutput(wire.Stderr, f)
	case wire.KindWindow:
		w, err := wire.ParseWindow(f)
		if err != nil {
			return protocolErrorf("%v", err)
		}
		if w.FD != wire.Stdin {
			return protocolErrorf("it granted credit for %s, which it sends itself", w.FD)
		}
		if s.in == nil {
			return nil // there is nothing to send
		}
		if err := s.in.grant(s, w); err != nil {
			// The broker cannot check how much another connection sent; so that is the
			// sandbox's word, and what is wrong with it must not hurt other programs.
			s.result.refused = &Error{Code: wire.CodeInternal, Message: err.Error()}
			s.endLocked()
		}
		return nil
	case wire.KindDiscarded:
		d, err := wire.ParseDiscarded(f)
		if err != nil {
			return protocolErrorf("%v", err)
		}
		return s.out.skip(d.FD, d.To)
	default: // KindExit
		e := new(wire.Ending)
		if err := decode(f, e); err != nil {
			return err
		}
		if e.Reason == "" {
			return protocolErrorf("its exit frame has no reason")
		}
		s.out.gaps(e)
		s.result.ending = e
		s.endLocked()
		return nil
	}
}

func (s *stream) receiveOutput(fd wire.FD, f wire.Frame) error {
	if s.result.firstByteAt.IsZero() && len(f.Payload) > 0 {
		s.result.firstByteAt = time.Now()
	}
	return s.out.receive(fd, f.Offset, f.Payload)
}

// lost ends the stream because its connection ended.
func (s *stream) lost(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.done {
		return
	}
	s.result.lost = err
	s.endLocked()
}

// endLocked marks the end. Nothing the reader delivers later counts.
func (s *stream) endLocked() {
	s.done = true
	s.result.endAt = time.Now()
	if s.out == nil || s.result.response == nil {
		close(s.responded)
	}
	close(s.ended)
}

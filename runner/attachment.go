package runner

import (
	"context"
	"errors"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-broker/sandbox-broker/internal/channel"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// startedLinger bounds how long the news that a program has started waits for the
// program's first output, to travel with it: a spare interpreter has it ready by then.
const startedLinger = 10 * time.Millisecond

// attachment is one stream between an exec and its reader.
type attachment struct {
	exec  *execution
	name  string // of the reader; see channel.Start
	out   *channel.FrameWriter
	ready chan struct{} // there may be something to send; room for one

	mu         sync.Mutex // guards the rest
	superseded bool
	failure    error
	confirmed  bool      // the reader has the ending
	sent       [3]uint64 // by FD: next offset to send (1, 2)
	limit      [3]uint64 // by FD: credit (1, 2)
	stdinTaken uint64    // last acknowledged to the client
}

var errSuperseded = &wire.Error{Code: wire.CodeConflict, Reason: wire.ReasonSuperseded, Message: "another client attached to this exec"}

// newAttachment makes an attachment that begins where the reader stands. It is nobody's
// until execution.attach takes it.
func newAttachment(e *execution, out *channel.FrameWriter, s channel.Start) *attachment {
	a := &attachment{exec: e, name: s.Reader, out: out, ready: make(chan struct{}, 1)}
	for fd, c := range map[wire.FD]wire.Credit{wire.Stdout: s.Stdout, wire.Stderr: s.Stderr} {
		a.sent[fd], a.limit[fd] = c.Acked, c.Limit
	}
	return a
}

func (e *execution) output(fd wire.FD) *output {
	if fd == wire.Stdout {
		return e.out
	}
	return e.err
}

func (a *attachment) wake() {
	select {
	case a.ready <- struct{}{}:
	default:
	}
}

func (a *attachment) supersede() {
	a.mu.Lock()
	a.superseded = true
	a.mu.Unlock()
	a.wake()
}

func (a *attachment) fail(err error) {
	a.mu.Lock()
	if a.failure == nil {
		a.failure = err
	}
	a.mu.Unlock()
	a.wake()
}

// receive handles the reader's frames until the stream ends or one is wrong.
func (a *attachment) receive(in *channel.FrameReader) {
	for {
		f, err := in.Read()
		if err != nil {
			return // the stream ended, or will be found broken by send
		}
		if err := a.handle(f); err != nil {
			a.fail(err)
			return
		}
	}
}

// handle takes one frame. What a superseded reader sent about input and output is
// another's to say by then; the signals and the cancel that it had asked for still count.
func (a *attachment) handle(f wire.Frame) error {
	e := a.exec
	switch f.Kind {
	case wire.KindStdin, wire.KindStdinEnd:
		if !e.isReader(a) {
			return nil
		}
		if e.in == nil {
			return wire.Invalid("program.stdin", 0, "input was sent, but the exec was started without stdin")
		}
		if f.Kind == wire.KindStdin {
			return e.in.accept(f.Offset, f.Payload)
		}
		return e.in.end(f.Offset)
	case wire.KindWindow:
		return a.window(f)
	case wire.KindSignal:
		var s wire.Signal
		if err := wire.Unmarshal(f.Kind, f.Payload, &s); err != nil {
			return err
		}
		sig := unix.SignalNum(s.Name)
		if sig == 0 {
			return wire.Invalid("signal.name", 0, "%q is no signal's name; use one like SIGINT", s.Name)
		}
		e.signalOnce(f.Offset, sig)
	case wire.KindCancel:
		e.end(wire.ReasonCanceled)
	case wire.KindDone:
		a.mu.Lock()
		a.confirmed = true
		a.mu.Unlock()

		a.wake()
	default:
		if f.Flags&wire.FlagOptional == 0 {
			return wire.Invalid("frame.kind", 0, "a %s frame does not belong on an exec's stream", f.Kind)
		}
	}
	return nil
}

func (a *attachment) window(f wire.Frame) error {
	w, err := wire.ParseWindow(f)
	if err != nil {
		return err
	}
	if w.FD == wire.Stdin {
		return wire.Invalid("window.fd", 0, "a client grants credit for stdout and stderr, not for stdin")
	}
	a.mu.Lock()
	if w.Acked > a.sent[w.FD] {
		sent := a.sent[w.FD]
		a.mu.Unlock()
		return wire.Invalid("window.acked", int64(sent), "an acknowledgement of %d bytes of %s goes beyond the %d that were sent", w.Acked, w.FD, sent)
	}
	a.limit[w.FD] = max(a.limit[w.FD], w.Limit) // a stale frame takes no credit back
	a.mu.Unlock()
	if err := a.exec.acknowledge(a, w.FD, w.Acked); err != nil {
		return err
	}
	a.wake()
	return nil
}

// send passes output, stdin credit and finally the ending to the reader. It
// returns nil when the reader has confirmed the ending, and an error when the
// stream cannot go on; a *wire.Error is one the reader shall be told.
func (a *attachment) send(ctx context.Context) error {
	if a.exec.in != nil { // whoever sends input waits for this
		if err := errors.Join(a.sendStdinWindow(true), a.out.Flush()); err != nil {
			return err
		}
	}
	linger := time.NewTimer(startedLinger)
	defer linger.Stop()
	late := linger.C // nil: what was queued does not wait any more
	ended := false
	for {
		progress, err := a.sendSome()
		if err != nil {
			return err
		}
		if progress {
			late = nil
			continue
		}
		if n := a.exec.ended(); n != nil && !ended && a.drained() {
			ended = true
			late = nil
			if err := a.out.Queue(wire.JSONFrame(wire.KindExit, 0, n)); err != nil {
				return err
			}
		}
		if late != nil {
			over, err := a.wait(ctx, late)
			if err != nil {
				return err
			}
			if over {
				late = nil
			}
			continue
		}
		if err := a.out.Flush(); err != nil {
			return err
		}
		if ended && a.isConfirmed() {
			return nil
		}
		if _, err := a.wait(ctx, nil); err != nil {
			return err
		}
	}
}

// wait waits until there may be something to send, or, which it reports, long enough.
func (a *attachment) wait(ctx context.Context, enough <-chan time.Time) (over bool, err error) {
	select {
	case <-a.ready:
		return false, nil
	case <-enough:
		return true, nil
	case <-ctx.Done():
		return false, context.Cause(ctx)
	}
}

// sendSome sends at most one frame of each kind that is due.
func (a *attachment) sendSome() (progress bool, err error) {
	a.mu.Lock()
	err = a.failure
	if a.superseded {
		err = errSuperseded
	}
	a.mu.Unlock()
	if err != nil {
		return false, err
	}
	if a.exec.in != nil {
		if err := a.sendStdinWindow(false); err != nil {
			return false, err
		}
	}
	for _, fd := range []wire.FD{wire.Stdout, wire.Stderr} {
		a.mu.Lock()
		at, limit := a.sent[fd], a.limit[fd]
		a.mu.Unlock()
		b, from, err := a.exec.output(fd).next(at, limit)
		if err != nil {
			return false, err
		}
		if from > at {
			if err := a.sendGap(fd, from); err != nil {
				return false, err
			}
			at, progress = from, true
		}
		if len(b) == 0 {
			continue
		}
		a.mu.Lock()
		a.sent[fd] = at + uint64(len(b)) // before the write: its answer may be fast
		a.mu.Unlock()
		err = a.out.Queue(wire.Frame{Kind: fd.DataKind(), Offset: at, Payload: b})
		a.exec.output(fd).giveBack(at)
		if err != nil {
			return false, err
		}
		progress = true
	}
	return progress, nil
}

// sendGap tells that the output goes on at to: what lies before it was discarded.
func (a *attachment) sendGap(fd wire.FD, to uint64) error {
	a.mu.Lock()
	a.sent[fd] = to
	a.mu.Unlock()
	return a.out.Queue(wire.Discarded{FD: fd, To: to}.Frame(0))
}

// sendStdinWindow tells how far the input may go, if that has moved enough to be
// worth a frame.
func (a *attachment) sendStdinWindow(first bool) error {
	w := a.exec.in.window()
	if !first && w.Acked-a.stdinTaken < stdinWindow/4 {
		return nil
	}
	a.stdinTaken = w.Acked
	return a.out.Queue(w.Frame(0))
}

// drained reports whether everything written has been sent.
func (a *attachment) drained() bool {
	for _, fd := range []wire.FD{wire.Stdout, wire.Stderr} {
		a.mu.Lock()
		at := a.sent[fd]
		a.mu.Unlock()
		if !a.exec.output(fd).over(at) {
			return false
		}
	}
	return true
}

func (a *attachment) isConfirmed() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.confirmed
}

// asWire makes any error one that can be sent.
func asWire(err error) *wire.Error {
	var e *wire.Error
	if errors.As(err, &e) {
		return e
	}
	return wire.Errorf(wire.CodeInternal, "%v", err)
}

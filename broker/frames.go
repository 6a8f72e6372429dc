package broker

import (
	"context"
	"encoding/json"
	"errors"
	"time"

	"github.com/sandbox-broker/sandbox-broker/internal/channel"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// fromRunner handles one frame of the runner, which may be hostile. It returns
// the ending when that is the frame.
func (r *relay) fromRunner(f wire.Frame) (*wire.Ending, error) {
	if f.Kind != wire.KindResponse && f.Kind != wire.KindError && !r.answered() {
		return nil, r.hostile("sent a " + f.Kind.String() + " frame before its answer")
	}
	switch f.Kind {
	case wire.KindResponse:
		return nil, r.started(f)
	case wire.KindStdout:
		return nil, r.output(wire.Stdout, f)
	case wire.KindStderr:
		return nil, r.output(wire.Stderr, f)
	case wire.KindDiscarded:
		return nil, r.discarded(f)
	case wire.KindWindow:
		return nil, r.stdinWindow(f)
	case wire.KindExit:
		return r.ending(f)
	case wire.KindError:
		var e wire.Error
		if err := json.Unmarshal(f.Payload, &e); err != nil || e.Code == "" {
			return nil, r.hostile("sent an error that is none")
		}
		return nil, &e
	}
	return nil, r.hostile("sent a " + f.Kind.String() + " frame")
}

// started notes that the program runs: from now on the stream only attaches.
func (r *relay) started(f wire.Frame) error {
	var s channel.Started
	if err := json.Unmarshal(f.Payload, &s); err != nil {
		return r.hostile("sent an answer that is none")
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.heard = true
	if r.began.IsZero() {
		r.began = time.Now()
		close(r.running)
	}
	r.lease.mark()
	r.agree(s)
	if r.start.AttachOnly {
		return nil
	}
	r.code = nil
	r.paid()
	// The ID existed: its input began with another client.
	r.joined = !s.New && !r.fresh
	r.ours = !r.joined
	r.start.AttachOnly, r.start.Program = true, nil
	return nil
}

// discarded passes on that output goes on behind a gap.
func (r *relay) discarded(f wire.Frame) error {
	d, err := wire.ParseDiscarded(f)
	if err != nil {
		return r.hostile("discarded what is no output")
	}
	r.mu.Lock()
	ok := d.To > r.sent[d.FD]
	if ok {
		if o := r.overtime; o != nil && o.granted {
			o.until[d.FD] += d.To - r.sent[d.FD] // what was discarded is not what comes
		}
		r.sent[d.FD], r.gapTo[d.FD] = d.To, d.To
		r.moved()
	}
	r.mu.Unlock()
	if !ok {
		return r.hostile("discarded output that was sent")
	}
	return r.client.Send(d.Frame(0))
}

// answered reports whether the runner's answer has come over the present stream.
func (r *relay) answered() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.heard
}

// output passes bytes on, if there are any, they are the next ones and paid for.
func (r *relay) output(fd wire.FD, f wire.Frame) error {
	end := f.Offset + uint64(len(f.Payload))
	r.mu.Lock()
	ok := len(f.Payload) > 0 && f.Offset == r.sent[fd] && end <= r.creditOf(fd).Limit
	over := r.limit > 0 && r.sent[wire.Stdout]+r.sent[wire.Stderr]+uint64(len(f.Payload)) > r.limit
	if ok = ok && !over; ok {
		r.sent[fd] = end // before the send: the client's answer may be fast
		r.moved()
	}
	r.mu.Unlock()
	if !ok {
		return r.hostile("sent output that is empty, out of order, not paid for or beyond the program's limit")
	}
	r.onFirst()
	return r.client.Send(f)
}

// creditOf is the client's position in one output. mu is held.
func (r *relay) creditOf(fd wire.FD) *wire.Credit {
	if fd == wire.Stdout {
		return &r.start.Stdout
	}
	return &r.start.Stderr
}

// stdinWindow drops input that the program has taken and grants the client more.
func (r *relay) stdinWindow(f wire.Frame) error {
	w, err := wire.ParseWindow(f)
	if err != nil || w.FD != wire.Stdin {
		return r.hostile("sent a window that is none")
	}
	r.mu.Lock()
	if r.joined {
		// How much the exec was sent before is the runner's to say, once.
		r.stdinAt, r.joined = w.Acked, false
	}
	if w.Acked > r.stdinAt+uint64(len(r.stdin)) {
		r.mu.Unlock()
		return r.hostile("acknowledged input that was never sent")
	}
	if w.Acked <= r.stdinAt && w.Limit <= r.credit && r.credited {
		r.mu.Unlock()
		return nil // nothing new in it
	}
	r.credited = true
	if w.Acked > r.stdinAt {
		r.stdin = append([]byte(nil), r.stdin[w.Acked-r.stdinAt:]...)
		r.stdinAt = w.Acked
	}
	r.credit = max(r.credit, w.Limit)
	w = wire.Window{FD: wire.Stdin, Acked: r.stdinAt, Limit: r.credit}
	r.mu.Unlock()
	return r.client.Send(w.Frame(0))
}

// ending reads the runner's word on how the program ended. Whether everything
// was delivered, and how long it took at most, is the broker's to say.
func (r *relay) ending(f wire.Frame) (*wire.Ending, error) {
	var n wire.Ending
	if err := json.Unmarshal(f.Payload, &n); err != nil {
		return nil, r.hostile("sent an ending that is none")
	}
	r.mu.Lock()
	err := checkEnding(&n, r.sent)
	r.mu.Unlock()
	if err != nil {
		return nil, r.hostile(err.Error())
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	n.Cause, n.Message = "", plain(n.Message)
	if n.Reason != wire.ReasonSignaled {
		n.Signal = ""
	}
	measured(n.Usage, r.longest())
	n.StdoutDiscardedTo, n.StderrDiscardedTo = r.gapTo[wire.Stdout], r.gapTo[wire.Stderr]
	r.lease.isOver(r.id)
	n.Complete = n.StdoutBytes == r.sent[wire.Stdout] && n.StderrBytes == r.sent[wire.Stderr] &&
		n.StdoutDiscardedTo == 0 && n.StderrDiscardedTo == 0
	return &n, nil
}

// fromClient handles the client's frames until ctx ends or one is wrong.
func (r *relay) fromClient(ctx context.Context) error {
	for {
		select {
		case f := <-r.client.Frames():
			if err := r.clientFrame(f); err != nil {
				return err
			}
		case <-ctx.Done():
			return nil
		}
	}
}

func (r *relay) clientFrame(f wire.Frame) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch f.Kind {
	case wire.KindStdin:
		return r.clientStdin(f)
	case wire.KindStdinEnd:
		end := r.stdinAt + uint64(len(r.stdin))
		if f.Offset != end {
			return wire.Invalid("stdin_end.offset", int64(end), "the end of stdin at %d does not match the %d bytes received", f.Offset, end)
		}
		r.stdinTo = &end
		r.forward(f)
	case wire.KindWindow:
		return r.clientWindow(f)
	case wire.KindSignal, wire.KindCancel:
		return r.clientOrder(f)
	case wire.KindDone:
		if !r.hasDone {
			r.hasDone = true
			close(r.confirmed)
		}
	default:
		if f.Flags&wire.FlagOptional == 0 {
			return wire.Invalid("frame.kind", 0, "a %s frame does not belong on an exec's stream", f.Kind)
		}
	}
	return nil
}

func (r *relay) clientStdin(f wire.Frame) error {
	end := r.stdinAt + uint64(len(r.stdin))
	switch {
	case r.stdinTo != nil:
		return wire.Invalid("stdin.offset", int64(*r.stdinTo), "stdin came after its end")
	case f.Offset != end:
		return wire.Invalid("stdin.offset", int64(end), "stdin at offset %d does not follow the %d bytes received; frames are out of order", f.Offset, end)
	case end+uint64(len(f.Payload)) > r.credit:
		return wire.Invalid("stdin", int64(r.credit), "stdin up to offset %d exceeds the credit granted, which ends at %d", end+uint64(len(f.Payload)), r.credit)
	}
	r.stdin = append(r.stdin, f.Payload...)
	r.forward(f)
	return nil
}

func (r *relay) clientWindow(f wire.Frame) error {
	w, err := wire.ParseWindow(f)
	if err != nil {
		return err
	}
	if w.FD == wire.Stdin {
		return wire.Invalid("window.fd", 0, "a client grants credit for stdout and stderr, not for stdin")
	}
	if w.Acked > r.sent[w.FD] {
		return wire.Invalid("window.acked", int64(r.sent[w.FD]), "an acknowledgement of %d bytes of %s goes beyond the %d that were sent", w.Acked, w.FD, r.sent[w.FD])
	}
	c := r.creditOf(w.FD)
	c.Acked, c.Limit = max(c.Acked, w.Acked), max(c.Limit, w.Limit) // a stale frame takes nothing back
	r.granted[w.FD] = true
	r.moved()
	if c.Limit-c.Acked > wire.MaxWindow {
		return wire.Invalid("window.limit", wire.MaxWindow, "the window of %s has grown to %d bytes, beyond the limit of %d", w.FD, c.Limit-c.Acked, wire.MaxWindow)
	}
	r.forwardCredit(w.FD)
	return nil
}

// isClientGone reports whether an error is the end of a client's connection
// rather than a failure to tell it about.
func isClientGone(err error) bool { return errors.Is(err, ErrDetached) }

package simulated

import (
	"context"
	"sync"
	"time"

	"github.com/sandbox-broker/sandbox-broker/internal/channel"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// execution is one program that "runs". What it has printed, and whether it has
// ended, follows from the clock: nothing happens while nobody looks.
type execution struct {
	id      string
	program Program
	began   time.Time
	timeout time.Duration

	mu       sync.Mutex // guards the rest
	canceled time.Time  // zero: it was not
	reader   *attachment
}

func newExecution(id string, p Program, timeout time.Duration) *execution {
	return &execution{id: id, program: p, began: time.Now(), timeout: timeout}
}

// state is what an exec looks like at one moment.
type state struct {
	printed uint64        // bytes of output so far
	ending  *wire.Ending  // nil: it still runs
	next    time.Duration // how long until it changes by itself
}

func (e *execution) look() state {
	e.mu.Lock()
	canceled := e.canceled
	e.mu.Unlock()
	ran, ends, reason := time.Since(e.began), e.program.length(), wire.ReasonExited
	if e.timeout < ends {
		ends, reason = e.timeout, wire.ReasonTimeout
	}
	if at := canceled.Sub(e.began); !canceled.IsZero() && at < ends {
		ends, reason = at, wire.ReasonCanceled
	}
	st := state{printed: uint64(e.program.printed(min(ran, ends)) * len(e.program.Text))}
	if ran < ends {
		st.next = min(e.program.next(ran), ends) - ran
		return st
	}
	st.ending = &wire.Ending{Reason: reason, StdoutBytes: st.printed, Usage: &wire.Usage{WallMS: ends.Milliseconds()}}
	if reason == wire.ReasonExited {
		st.ending.ExitCode = e.program.ExitCode
	}
	return st
}

// attachment is one stream between an exec and its reader.
type attachment struct {
	exec  *execution
	out   *channel.FrameWriter
	ready chan struct{} // something has changed; room for one

	mu        sync.Mutex // guards the rest
	failure   error
	confirmed bool
	sent      uint64
	limit     uint64
}

var errSuperseded = wire.Errorf(wire.CodeConflict, "another client attached to this exec")

// attach makes the exec's one reader.
func (e *execution) attach(out *channel.FrameWriter, at wire.Credit) *attachment {
	a := &attachment{exec: e, out: out, ready: make(chan struct{}, 1), sent: at.Acked, limit: at.Limit}
	e.mu.Lock()
	old := e.reader
	e.reader = a
	e.mu.Unlock()
	if old != nil {
		old.fail(errSuperseded)
	}
	return a
}

func (a *attachment) wake() {
	select {
	case a.ready <- struct{}{}:
	default:
	}
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
		a.wake()
	}
}

func (a *attachment) handle(f wire.Frame) error {
	switch f.Kind {
	case wire.KindWindow:
		w, err := wire.ParseWindow(f)
		if err != nil {
			return err
		}
		if w.FD == wire.Stdout {
			a.mu.Lock()
			a.limit = max(a.limit, w.Limit)
			a.mu.Unlock()
		}
	case wire.KindCancel, wire.KindSignal:
		a.exec.mu.Lock()
		if a.exec.canceled.IsZero() {
			a.exec.canceled = time.Now()
		}
		a.exec.mu.Unlock()
	case wire.KindDone:
		a.mu.Lock()
		a.confirmed = true
		a.mu.Unlock()
	default:
		return wire.Invalid("frame.kind", 0, "a simulated exec takes no %s frame", f.Kind)
	}
	return nil
}

// send passes output and then the ending to the reader. It returns nil when the
// reader has confirmed the ending.
func (a *attachment) send(ctx context.Context) error {
	clock := time.NewTimer(0)
	defer clock.Stop()
	told := false
	for {
		st := a.exec.look()
		b, confirmed, err := a.due(st.printed)
		if err != nil {
			return err
		}
		if len(b.Payload) > 0 {
			if err := a.out.Queue(b); err != nil {
				return err
			}
			continue
		}
		if st.ending != nil && !told && b.Offset == st.printed {
			told = true
			if err := a.out.Queue(wire.JSONFrame(wire.KindExit, 0, st.ending)); err != nil {
				return err
			}
		}
		if err := a.out.Flush(); err != nil || told && confirmed {
			return err
		}
		var changes <-chan time.Time
		if st.ending == nil {
			clock.Reset(st.next)
			changes = clock.C
		}
		select {
		case <-a.ready:
		case <-changes:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// due takes the next frame of what has been printed, as far as the credit goes:
// one without payload if there is none.
func (a *attachment) due(printed uint64) (f wire.Frame, confirmed bool, err error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	f = wire.Frame{Kind: wire.KindStdout, Offset: a.sent}
	if n := min(printed, a.limit, a.sent+wire.MaxData); n > a.sent {
		f.Payload = a.exec.program.output(a.sent, int(n-a.sent))
		a.sent = n
	}
	return f, a.confirmed, a.failure
}

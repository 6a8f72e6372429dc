package sandboxclient

import (
	"context"
	"errors"
	"math/rand/v2"
	"time"

	"go.opentelemetry.io/otel/trace/noop"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// maxSignals bounds the signals that are sent again to a program that is reached again;
// the sandbox skips those that it had.
const maxSignals = 16

// newLeg makes a stream that is to carry the execution. Until its request is sent,
// what is to be sent waits for it.
func (e *execution) newLeg() *stream {
	s := newCall()
	s.out, s.in = e.out, e.in
	s.named = e.named
	if e.in != nil {
		e.in.join(s)
	}
	return s
}

// named notes the broker's answer; the connection's reader calls it.
func (e *execution) named(r *wire.Response) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.over || e.result.response != nil {
		return
	}
	e.result.response, e.result.responseAt, e.handle = r, time.Now(), r.Exec
	close(e.responded)
}

// send sends a frame on the present leg. One that is lost with it is made good when
// the next one begins.
func (e *execution) send(f wire.Frame) {
	e.mu.Lock()
	leg := e.leg
	e.mu.Unlock()
	if leg != nil {
		leg.send(f)
	}
}

// cancel has the program ended.
func (e *execution) cancel() {
	e.mu.Lock()
	e.canceled = true
	e.mu.Unlock()
	e.send(wire.Frame{Kind: wire.KindCancel})
}

// signal sends a signal, under a number by which the sandbox knows it again.
func (e *execution) signal(name string) {
	f := wire.JSONFrame(wire.KindSignal, 0, wire.Signal{Name: name})
	f.Offset = max(1, rand.Uint64()) //nolint:gosec // a number, no secret
	e.mu.Lock()
	e.signals = append(e.signals[max(0, len(e.signals)-maxSignals+1):], f)
	e.mu.Unlock()
	e.send(f)
}

// begin makes leg the present one, and sends what may have been lost with the one
// before: windows, signals and the cancel are all of a kind that may come twice.
func (e *execution) begin(leg *stream) {
	e.mu.Lock()
	first := e.leg == nil
	e.leg = leg
	frames := append([]wire.Frame(nil), e.signals...)
	if e.canceled {
		frames = append(frames, wire.Frame{Kind: wire.KindCancel})
	}
	e.mu.Unlock()
	if !first {
		leg.send(e.out.window(wire.Stdout).Frame(0))
		leg.send(e.out.window(wire.Stderr).Frame(0))
	}
	for _, f := range frames {
		leg.send(f)
	}
}

// carry sees the program from leg to leg until one brings the end, or none can be
// had. The first is leg, or one that attaches.
func (e *execution) carry(leg *stream) {
	defer e.quit()
	defer e.finish()
	back := comeback{e: e}
	for attached := leg == nil; ; attached = true {
		if leg == nil {
			var err error
			if leg, err = back.attach(); err != nil {
				e.lose(err)
				return
			}
			e.span.AddEvent("attached")
		}
		began := time.Now()
		select {
		case <-leg.ended:
		case <-e.life.Done():
		}
		confirmed := leg.finish()
		r := leg.outcome()
		if !e.goesOn(r, attached) {
			e.conclude(r, back.count > 0)
			if r.ending != nil && !confirmed && !e.bound && !e.confirming {
				e.client.goBackground(e.confirm)
			}
			return
		}
		back.broken(r, !r.firstByteAt.IsZero() || time.Since(began) >= steadyAfter)
		leg = nil
	}
}

// goesOn reports whether a leg that ended so is no end of the program, which can be
// attached to again.
func (e *execution) goesOn(r streamResult, attached bool) bool {
	e.mu.Lock()
	handle := e.handle
	e.mu.Unlock()
	switch {
	case e.bound || handle == "" || e.life.Err() != nil || r.ending != nil:
		return false
	case r.refused != nil:
		return attached && e.passing(r.refused) || wire.AsError(r.refused).Reason == wire.ReasonMoved
	}
	return r.lost != nil && e.passing(r.lost)
}

// passing reports whether an error may be gone at the next attempt.
func (e *execution) passing(err error) bool {
	if errors.Is(err, ErrClosed) || errors.Is(err, ErrProtocol) {
		return false
	}
	told := wire.AsError(err)
	if told == nil {
		e.noDoubt()
		return true // the network's
	}
	switch told.Code {
	case wire.CodeUnavailable, wire.CodeExhausted, wire.CodeNotReady:
		e.noDoubt()
		return true
	case wire.CodeNotFound, wire.CodeLeaseExpired:
		return told.Reason != wire.ReasonConfirmed && e.inDoubt()
	}
	return false
}

// inDoubt reports whether a program that is said not to exist may be on its way to the
// sandbox still, or its lease to the broker's other replicas: soon after the handle came,
// and, if there was no output yet, soon after that was said first.
func (e *execution) inDoubt() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	r := e.result
	if r.responseAt.IsZero() {
		return false
	}
	if e.doubted.IsZero() {
		e.doubted = time.Now()
	}
	since := r.responseAt
	if r.firstByteAt.IsZero() {
		since = e.doubted
	}
	return time.Since(since) < e.client.startDoubt
}

// noDoubt notes an answer that says nothing of whether the program exists.
func (e *execution) noDoubt() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.doubted = time.Time{}
}

// confirm tells the broker, over another connection, that the ending has come, so that
// it forgets the program.
func (e *execution) confirm() {
	ctx, cancel := context.WithTimeout(context.Background(), abandonWait)
	defer cancel()
	again := e.client.newExecution(ctx, noop.Span{}, stdio{
		stdoutAt: e.out.credit(wire.Stdout).Acked, stderrAt: e.out.credit(wire.Stderr).Acked,
	})
	again.attaching, again.confirming = true, true
	e.mu.Lock()
	again.handle = e.handle
	e.mu.Unlock()
	again.serve(ctx, nil, stdio{})
	<-again.done
}

// conclude takes over what the last leg brought.
func (e *execution) conclude(r streamResult, resumed bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.result.firstByteAt.IsZero() {
		e.result.firstByteAt = r.firstByteAt
	}
	e.result.endAt, e.result.ending = r.endAt, r.ending
	e.result.refused, e.result.lost = r.refused, r.lost
	if told := wire.AsError(r.refused); told != nil && (resumed || told.Reason == wire.ReasonSuperseded) {
		// The program had started: what is told is why its output ends here.
		e.result.refused, e.result.lost = nil, r.refused
	}
}

// lose ends the execution without an ending.
func (e *execution) lose(err error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.result.lost = err
}

// finish lets go of all that waits for more.
func (e *execution) finish() {
	e.out.end()
	if e.in != nil {
		e.in.end()
	}
	e.mu.Lock()
	e.over = true
	if e.result.response == nil {
		close(e.responded)
	}
	e.mu.Unlock()
	close(e.ended)
}

package sandboxclient

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// Bounds of coming back to a program after its connection broke.
const (
	// resumeSpread bounds the random wait before the first attempt, so that the
	// programs of a broker that went away do not all come back in one moment.
	resumeSpread = 250 * time.Millisecond
	// resumeMin and resumeMax bound the wait before each further attempt, which
	// doubles; a random part of up to a half is taken off.
	resumeMin = 100 * time.Millisecond
	resumeMax = 5 * time.Second
	// resumeAnswer bounds the wait for the broker's answer to one attempt.
	resumeAnswer = 30 * time.Second
	// resumeWindow is how long it is tried when the caller's context has no
	// deadline, or longer: as long as the broker keeps a run without a client.
	resumeWindow = 2 * time.Minute
	// resumeLeaseWindow is the same for a program in a lease, if that lasts so long.
	resumeLeaseWindow = 15 * time.Minute
	// steadyAfter is how long a connection must have carried a program without a
	// byte to count as one that works.
	steadyAfter = time.Second
	// startDoubt is how long after its handle came a program may be on its way to
	// the sandbox: the answer that nobody knows it is then asked for again.
	startDoubt = 5 * time.Second
	// maxSignals bounds the signals that are sent again to a program that is reached
	// again; the sandbox skips those that it had.
	maxSignals = 16
)

// errGiveUp says that the time for coming back is over.
var errGiveUp = errors.New("it could not be reached again in time")

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
	f.Offset = max(1, rand.Uint64())
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
		leg.finish()
		r := leg.outcome()
		if !e.goesOn(r, attached) {
			e.conclude(r, back.count > 0)
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
		return true // the network's
	}
	switch told.Code {
	case wire.CodeUnavailable, wire.CodeExhausted, wire.CodeNotReady:
		return true
	case wire.CodeNotFound:
		if told.Reason == wire.ReasonConfirmed {
			return false
		}
		at := e.outcome().responseAt
		return !at.IsZero() && time.Since(at) < startDoubt
	}
	return false
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

// comeback is the attempts to reach a program again since its connection broke.
type comeback struct {
	e       *execution
	count   int       // how often a connection broke
	attempt int       // since one worked
	until   time.Time // when it is given up; zero: with the caller
	last    error     // why the newest attempt failed
}

// broken notes the end of a leg; worked says that it was of use.
func (b *comeback) broken(r streamResult, worked bool) {
	b.count++
	if b.last = r.lost; b.last == nil {
		b.last = r.refused
	}
	if worked || b.until.IsZero() {
		b.attempt, b.until = 0, b.e.resumeUntil()
	}
	b.e.mu.Lock()
	defer b.e.mu.Unlock()
	if b.e.result.firstByteAt.IsZero() {
		b.e.result.firstByteAt = r.firstByteAt
	}
}

// resumeUntil is when coming back is given up: with the caller's context if that
// has a deadline, else when there is nothing left to come back to.
func (e *execution) resumeUntil() time.Time {
	if !e.until.IsZero() {
		return time.Time{}
	}
	now := time.Now()
	until := now.Add(e.client.resumeWindow)
	switch r := e.outcome().response; {
	case r == nil:
	case r.DetachGraceMS > 0:
		if grace := now.Add(time.Duration(r.DetachGraceMS) * time.Millisecond); grace.After(until) {
			until = grace
		}
	case r.ExpiresMS > 0:
		until = now.Add(resumeLeaseWindow)
		if expires := time.UnixMilli(r.ExpiresMS); expires.Before(until) {
			until = expires
		}
	}
	return until
}

// attach tries until the program is reached. The error is final.
func (b *comeback) attach() (*stream, error) {
	e := b.e
	if b.count == 0 && b.until.IsZero() {
		b.until = e.resumeUntil()
	}
	for ; ; b.attempt++ {
		if err := b.pause(); err != nil {
			return nil, err
		}
		leg, err := b.try()
		if err == nil {
			b.attempt++
			return leg, nil
		}
		if !e.passing(err) {
			return nil, err
		}
		b.last = err
	}
}

// pause waits before an attempt; none is waited for when a caller asks for the
// first time.
func (b *comeback) pause() error {
	var d time.Duration
	switch {
	case b.attempt > 0:
		d = min(resumeMin<<min(b.attempt-1, 10), resumeMax)
		d -= rand.N(d / 2)
		if told := wire.AsError(b.last); told != nil {
			d = max(d, min(told.RetryAfter(), resumeMax))
		}
	case b.count > 0:
		d = rand.N(resumeSpread)
	}
	if !b.until.IsZero() && time.Now().Add(d).After(b.until) {
		return fmt.Errorf("%w: %w", errGiveUp, b.last)
	}
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-b.e.life.Done():
		if b.last == nil {
			return b.e.life.Err()
		}
		return b.last
	case <-b.e.client.closing:
		return ErrClosed
	}
}

// try attaches once.
func (b *comeback) try() (*stream, error) {
	e := b.e
	ctx, cancel := context.WithTimeout(e.life, resumeAnswer)
	defer cancel()
	stop := make(chan struct{})
	defer close(stop)
	go func() {
		select {
		case <-e.client.closing:
			cancel()
		case <-stop:
		}
	}()
	e.mu.Lock()
	handle := e.handle
	e.mu.Unlock()
	req := wire.Request{
		Op: wire.OpAttach, Exec: handle,
		Stdout: e.out.credit(wire.Stdout), Stderr: e.out.credit(wire.Stderr),
	}
	injectTrace(e.life, &req)
	leg := e.newLeg()
	if err := e.client.open(ctx, leg, req, nil); err != nil {
		return nil, err
	}
	e.begin(leg)
	select {
	case <-leg.responded:
	case <-ctx.Done():
	}
	r := leg.outcome()
	if r.response != nil {
		return leg, nil
	}
	leg.finish()
	switch {
	case r.refused != nil:
		return nil, r.refused
	case r.lost != nil:
		return nil, r.lost
	}
	return nil, fmt.Errorf("the broker did not answer: %w", ctx.Err())
}

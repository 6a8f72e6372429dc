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
	// startDoubt is how long after its handle came a program may be on its way to the
	// sandbox, or its lease to the broker's other replicas; before any output came, also
	// how long after the first answer that there is no such thing. Such an answer is then
	// asked for again.
	startDoubt = 5 * time.Second
)

// errGiveUp says that the time for coming back is over.
var errGiveUp = errors.New("it could not be reached again in time")

// comeback is the attempts to reach a program again since its connection broke.
type comeback struct {
	e       *execution
	count   int       // how often a connection broke
	attempt int       // how many in a row got no answer
	until   time.Time // when it is given up; zero: with the caller
	last    error     // why the newest attempt failed
}

// broken notes the end of a leg; worked says that it was of use.
func (b *comeback) broken(r streamResult, worked bool) {
	b.count++
	if b.last = r.lost; b.last == nil {
		b.last = r.refused
	}
	// A broker answered, so the next one is not far; but only a leg that was of use
	// buys more time.
	b.attempt = 0
	if worked || b.count == 1 {
		b.until = b.e.resumeUntil()
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
		d -= rand.N(d / 2) //nolint:gosec // no secret
		if told := wire.AsError(b.last); told != nil {
			d = max(d, min(told.RetryAfter(), resumeMax))
		}
	case b.count > 0:
		d = rand.N(resumeSpread) //nolint:gosec // no secret
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

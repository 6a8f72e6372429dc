package broker

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// A lease that ended with its sandbox, or without its client, is remembered for a while,
// here and by the other replicas: a client that was away at that moment comes back to
// the ending of its program. The claim cannot hold that: as long as it is there,
// agent-sandbox makes a new, blank sandbox for it.

const (
	// endedKept is how long such an ending is told, and maxEnded how many are.
	endedKept = 30 * time.Second
	maxEnded  = 64
	// maxEndedExecs bounds the programs of one lease of which it is told: the newest.
	maxEndedExecs = 8
	// maxEndedText bounds what is said of the reason, in bytes.
	maxEndedText = 256
	// tellTimeout bounds the wait until the other replicas can know.
	tellTimeout = 2 * time.Second
	// toldPatience bounds the wait for what another replica tells, and toldLook is how
	// often it is looked for.
	toldPatience = 500 * time.Millisecond
	toldLook     = 25 * time.Millisecond
)

// Ended is how a lease ended, for who held it.
type Ended struct {
	Lease string `json:"lease"`
	// Execs are the programs that went on until then.
	Execs []string `json:"execs"`
	Fate  Fate     `json:"fate"`
}

// farewells are the endings that this replica tells.
type farewells struct {
	mu   sync.Mutex
	list []keptEnding // the oldest first
}

type keptEnding struct {
	Ended
	at time.Time
}

// add keeps an ending, and drops what was kept long enough.
func (e *farewells) add(n Ended) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.list = append(e.fresh(), keptEnding{Ended: n, at: time.Now()})
	e.list = e.list[max(0, len(e.list)-maxEnded):]
}

// fresh are those that are kept. mu is held.
func (e *farewells) fresh() []keptEnding {
	i := slices.IndexFunc(e.list, func(n keptEnding) bool { return time.Since(n.at) < endedKept })
	if i < 0 {
		return nil
	}
	return slices.Clone(e.list[i:])
}

// all are the endings to tell.
func (e *farewells) all() []Ended {
	e.mu.Lock()
	defer e.mu.Unlock()
	out := []Ended{}
	for _, n := range e.fresh() {
		out = append(out, n.Ended)
	}
	return out
}

func (e *farewells) of(lease string) (Ended, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, n := range e.fresh() {
		if n.Lease == lease {
			return n.Ended, true
		}
	}
	return Ended{}, false
}

// remember keeps how a lease ended, if a program of it went on until then.
func (b *Broker) remember(l *lease) {
	f := l.fate
	execs := l.unfinished()
	if f == fateReleased || l.isAway() || len(execs) == 0 {
		return
	}
	l.mu.Lock()
	l.mourned = true
	l.mu.Unlock()
	f.Message = f.Message[:min(len(f.Message), maxEndedText)]
	b.ended.add(Ended{Lease: l.id, Execs: execs, Fate: f})
}

// tell makes the other replicas know, before the claim is gone: then each program of the
// lease that one of them carries ends with the same fate.
func (b *Broker) tell() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(b.life), tellTimeout)
	defer cancel()
	if err := b.roster.Tell(ctx, b.ended.all()); err != nil {
		b.log.Warn("the other replicas could not be told of an ending", "error", err)
	}
}

// howEnded looks for the ending of a program whose lease is gone.
func (b *Broker) howEnded(ctx context.Context, h handle) (Fate, bool) {
	late := time.NewTimer(toldPatience)
	defer late.Stop()
	look := time.NewTicker(toldLook)
	defer look.Stop()
	for {
		n, ok := b.ended.of(h.lease)
		if !ok {
			n, ok = b.roster.Told(h.lease)
		}
		if ok {
			return n.Fate, slices.Contains(n.Execs, h.exec)
		}
		if b.shared == nil {
			return Fate{}, false
		}
		select {
		case <-look.C:
		case <-late.C:
			return Fate{}, false
		case <-ctx.Done():
			return Fate{}, false
		}
	}
}

// attachToEnded tells the ending of a program whose lease is gone, if it is known; else
// it returns expired.
func (b *Broker) attachToEnded(ctx context.Context, c Caller, req wire.Request, h handle, s Stream, expired error) error {
	if e := wire.AsError(expired); e == nil || e.Code != wire.CodeLeaseExpired || h.exec == "" {
		return expired
	}
	f, ok := b.howEnded(ctx, h)
	if !ok {
		return expired
	}
	stdout, stderr, err := checkWindows(&req)
	if err != nil {
		return err
	}
	n := &wire.Ending{Reason: f.Reason, Cause: f.Cause, Message: f.Message, StdoutBytes: stdout.Acked, StderrBytes: stderr.Acked}
	b.log.Info("exec ended", "request", c.RequestID, "tenant", c.Tenant, "lease", h.claim, "exec", h.exec, "reason", n.Reason, "cause", n.Cause, "complete", false)
	exec := h
	h.exec = ""
	err = errors.Join(
		s.Send(wire.JSONFrame(wire.KindResponse, 0, wire.Response{Lease: b.secret.seal(h), Exec: b.secret.seal(exec), ExpiresMS: time.Now().UnixMilli(), RequestID: c.RequestID})),
		s.Send(wire.JSONFrame(wire.KindExit, 0, n)))
	if err != nil {
		return err
	}
	linger := time.NewTimer(endedLinger)
	defer linger.Stop()
	for {
		select {
		case f := <-s.Frames():
			if f.Kind == wire.KindDone {
				return nil
			}
		case <-linger.C:
			return nil
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// endedLinger bounds the wait for a client to confirm such an ending.
const endedLinger = 2 * time.Second

// goesOn notes a program of the lease that may have started.
func (l *lease) goesOn(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if !slices.Contains(l.going, id) {
		l.going = append(l.going[max(0, len(l.going)-maxEndedExecs+1):], id)
	}
}

// isOver notes that a program of the lease has ended, or did not start.
func (l *lease) isOver(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.going = slices.DeleteFunc(l.going, func(other string) bool { return other == id })
}

// unfinished are the newest programs of the lease of which this replica saw no end.
func (l *lease) unfinished() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.going)
}

package broker

import (
	"context"
	"errors"
	"slices"
	"strings"
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
	maxEnded  = 192
	// maxEndedSize bounds what is told of them, in bytes of JSON: an object's annotations
	// may have 256 KiB. The newest are told; 80 fit, whatever is in them.
	maxEndedSize = 240 << 10
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
	// Execs are the programs that went on until then, as far as the replica knew, and
	// Over those of which it saw another ending: what one replica saw outranks what
	// others think.
	Execs []string `json:"execs"`
	Over  []string `json:"over,omitempty"`
	Fate  Fate     `json:"fate"`
}

// farewells are the endings that this replica tells.
type farewells struct {
	telling sync.Mutex // held while the others are told, so that the newest list is told last

	mu   sync.Mutex   // guards the rest
	list []keptEnding // the oldest first
	owed bool         // the others have yet to be told of a change
	told bool         // the others know of some
}

type keptEnding struct {
	Ended
	at time.Time
}

// ofPrograms reports whether the ending says something of a program.
func (n Ended) ofPrograms() bool { return len(n.Execs)+len(n.Over) > 0 }

// add keeps an ending, and drops what was kept long enough.
func (e *farewells) add(n Ended, tell bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.list = append(e.fresh(), keptEnding{Ended: n, at: time.Now()})
	for len(e.list) > maxEnded {
		// Of one without programs it is only known that it ended here.
		i := slices.IndexFunc(e.list, func(n keptEnding) bool { return !n.ofPrograms() })
		e.list = slices.Delete(e.list, max(0, i), max(0, i)+1)
	}
	e.owed = e.owed || tell
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
	out, size := []Ended{}, 0
	for _, n := range slices.Backward(e.fresh()) {
		if !n.ofPrograms() {
			continue
		}
		if size += len(wire.Marshal(n.Ended)) + 1; size > maxEndedSize {
			break
		}
		out = append(out, n.Ended)
	}
	slices.Reverse(out)
	return out
}

func (e *farewells) of(lease string) (keptEnding, bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, n := range e.fresh() {
		if n.Lease == lease {
			return n, true
		}
	}
	return keptEnding{}, false
}

// take reports whether there is something to tell, and takes it for told.
func (e *farewells) take() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	owed := e.owed
	e.owed = false
	return owed
}

// settle notes whether the others were told, and whether that was of any.
func (e *farewells) settle(ok, some bool) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if ok {
		e.told = some
	} else {
		e.owed = true
	}
}

// review reports whether the others are to be told: what they could not be told before,
// or that it is over.
func (e *farewells) review() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	some := len(e.fresh()) > 0
	e.owed = e.owed && some || e.told && !some
	return e.owed
}

// remember keeps how a lease ended, if a program of it went on until then.
func (b *Broker) remember(l *lease) {
	f := l.fate
	if f == fateReleased || l.isAway() {
		return
	}
	f.Message = strings.ToValidUTF8(f.Message[:min(len(f.Message), maxEndedText)], "")
	l.mu.Lock()
	n := Ended{Lease: l.id, Execs: slices.Clone(l.going), Over: slices.Clone(l.over), Fate: f}
	l.mourned = n.ofPrograms()
	tell := l.mourned
	l.mu.Unlock()
	b.ended.add(n, tell)
}

// tell makes the other replicas know, before the claim is gone: then each program of the
// lease that one of them carries ends with the same fate.
func (b *Broker) tell() {
	b.ended.telling.Lock()
	defer b.ended.telling.Unlock()
	if !b.ended.take() {
		return // whoever was first told of all
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(b.life), tellTimeout)
	defer cancel()
	all := b.ended.all()
	err := b.roster.Tell(ctx, all)
	b.ended.settle(err == nil, len(all) > 0)
	if err != nil {
		b.log.Warn("the other replicas could not be told of an ending yet", "error", err)
	}
}

// tellAgain tells what could not be told, and takes back what was told for long enough.
func (b *Broker) tellAgain() {
	if b.ended.review() {
		b.tell()
	}
}

// knownEndings is what is known of a lease that has ended: here first, then elsewhere.
func (b *Broker) knownEndings(lease string) []Ended {
	told := b.roster.Told(lease)
	if n, ok := b.ended.of(lease); ok {
		told = append([]Ended{n.Ended}, told...)
	}
	return told
}

// settled reports whether what others saw of a lease that ended here must have come.
func (b *Broker) settled(lease string) bool {
	n, ok := b.ended.of(lease)
	return b.shared == nil || ok && time.Since(n.at) >= toldPatience
}

// howEnded looks for the ending of a program whose lease is gone.
func (b *Broker) howEnded(ctx context.Context, h handle) (f Fate, ok bool) {
	late := time.NewTimer(toldPatience)
	defer late.Stop()
	look := time.NewTicker(toldLook)
	defer look.Stop()
	for {
		known := b.knownEndings(h.lease)
		for _, n := range slices.Backward(known) {
			if slices.Contains(n.Over, h.exec) {
				return f, false
			}
			if slices.Contains(n.Execs, h.exec) {
				f, ok = n.Fate, true
			}
		}
		if b.settled(h.lease) {
			return f, ok
		}
		select { // another replica may have seen how the program ended
		case <-look.C:
		case <-late.C:
			return f, ok
		case <-ctx.Done():
			return f, false
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

// isOver notes that a program of the lease has ended.
func (l *lease) isOver(id string) {
	l.doesNotGoOn(id)
	l.mu.Lock()
	defer l.mu.Unlock()
	l.over = append(l.over[max(0, len(l.over)-maxEndedExecs+1):], id)
}

// doesNotGoOn notes that there is no such program.
func (l *lease) doesNotGoOn(id string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.going = slices.DeleteFunc(l.going, func(other string) bool { return other == id })
}

package broker

import (
	"context"
	"sync"
	"time"

	"github.com/sandbox-broker/sandbox-broker/internal/channel"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

const (
	// bindTimeout bounds the Bind of a sandbox.
	bindTimeout = 5 * time.Second
	// recordDelay is how long a run has to be over without being recorded. To write
	// the record would cost the cluster more than most runs take.
	recordDelay = 100 * time.Millisecond
	// recordAttempt bounds one try to write a lease's record.
	recordAttempt = 10 * time.Second
	// fateTimeout bounds the wait for the provider's word on a sandbox whose
	// runner is not the one that was bound.
	fateTimeout = 10 * time.Second
	// reattachWindow bounds how long a lost channel may be lost.
	reattachWindow = 60 * time.Second
	// redialPause is the pause between two attempts to open a lost channel, and the
	// first one before a channel is opened again that keeps breaking. Each of those
	// pauses is twice the one before, up to maxRedialPause: a sandbox must not keep the
	// cluster busy with its connections.
	redialPause    = 200 * time.Millisecond
	maxRedialPause = 5 * time.Second
	// steadyAfter is how long a channel must live not to count as one that keeps
	// breaking, and freeRedials is how many of those are opened again at once.
	steadyAfter = 10 * time.Second
	freeRedials = 8
)

// lease is a tenant's hold on one sandbox: claim, pod and runner boot, which
// never change. A sandbox that answers with another boot is another sandbox.
type lease struct {
	pool   *pool
	sb     Sandbox
	id     string // what the runner knows it by: two brokers may give one sandbox to one tenant
	tenant string
	kind   LeaseKind
	exec   string // the one exec of a run
	boot   string
	until  time.Time // the hard end

	bound   chan struct{}   // closed when the runner has said that the sandbox is this lease's
	mark    func()          // closes bound, once
	hurry   func()          // closes wanted, once
	wanted  chan struct{}   // closed when the client may come back, perhaps to another replica
	guarded <-chan struct{} // closed when the stock no longer moves the sandbox's end; nil: it never did

	dead chan struct{} // closed when the lease has ended, in whatever way
	fate Fate          // why; written before dead is closed

	mu       sync.Mutex // guards the rest; no I/O under it
	ended    bool
	guest    bool // another replica is its owner, and counts it
	away     bool // it has ended here only: it goes on at another replica
	mourned  bool // the other replicas shall know how it ended
	ch       *channel.Client
	dialling chan struct{} // closed when the redial under way is over; nil: none is
	opened   time.Time     // when the channel was, last
	breaks   int           // channels that broke one after the other, before steadyAfter
	clients  int           // attached streams, for a run
	grace    *time.Timer   // ends a run without clients
	hardEnd  *time.Timer
	onEnd    []func()
	going    []string         // programs that may go on; see ended.go
	over     []string         // the newest that have ended
	terms    map[string]terms // of programs by their ID; see terms.go
	termed   []string         // their IDs, the oldest first
}

// fateReleased is the fate of a lease whose owner ended it.
var fateReleased = Fate{Reason: wire.ReasonLost, Cause: wire.CauseDeleted, Message: "the lease was released"}

// newLease makes the lease that r describes. With ch nil, its channel is opened when it
// is needed.
func newLease(p *pool, sb Sandbox, ch *channel.Client, r Record) *lease {
	l := buildLease(p, sb, ch, r)
	l.watchEnd()
	return l
}

// newGuest makes a lease that another replica counts and guards.
func newGuest(p *pool, sb Sandbox, r Record) *lease {
	l := buildLease(p, sb, nil, r)
	l.guest = true
	l.watchEnd()
	return l
}

func buildLease(p *pool, sb Sandbox, ch *channel.Client, r Record) *lease {
	l := &lease{pool: p, sb: sb, id: r.Lease, tenant: r.Tenant, kind: r.Kind, exec: r.Exec, boot: r.Boot, until: r.Until, dead: make(chan struct{}), ch: ch, bound: make(chan struct{}), wanted: make(chan struct{})}
	if r.Kind == KindRun {
		l.going = []string{r.Exec}
	}
	l.hurry = sync.OnceFunc(func() { close(l.wanted) })
	l.mark = sync.OnceFunc(func() { close(l.bound) })
	return l
}

// watchEnd ends the lease when its time is up, which may be now: so it comes last.
func (l *lease) watchEnd() {
	l.mu.Lock() // until there is a timer that can be stopped
	defer l.mu.Unlock()
	l.hardEnd = time.AfterFunc(time.Until(l.until), func() {
		l.end(Fate{Reason: wire.ReasonLost, Cause: wire.CauseDeleted, Message: "the lease's time was up"})
	})
}

// end ends the lease once, for the first fate given, and destroys the sandbox in
// the background.
func (l *lease) end(f Fate) {
	l.finish(f, func(sb Sandbox) { l.pool.releaseAfter(l.lastWord, sb, l.id) })
}

// lastWord has the other replicas told how the lease ended, if that is of use.
func (l *lease) lastWord() {
	l.mu.Lock()
	tell := l.mourned && l.pool.tell != nil
	l.mu.Unlock()
	if tell {
		l.pool.tell()
	}
}

// adopt makes a guest this replica's own, which it reports. The caller counts it.
func (l *lease) adopt() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	was := l.guest && !l.ended
	l.guest = l.guest && !was
	return was
}

// leave ends the lease at this replica only: another one is its owner now.
func (l *lease) leave() {
	l.mu.Lock()
	if l.guest {
		l.mu.Unlock()
		return // it was never this one's
	}
	l.away = !l.ended
	l.mu.Unlock()
	l.finish(Fate{Reason: wire.ReasonLost, Cause: wire.CauseChannelLost, Message: "another replica has taken the lease over"}, l.pool.forgo)
}

// isAway reports whether the lease goes on at another replica.
func (l *lease) isAway() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.away
}

// disown ends a lease whose sandbox turned out to belong to another one, which
// goes on.
func (l *lease) disown() {
	l.finish(Fate{Reason: wire.ReasonLost, Cause: wire.CauseDeleted, Message: "another broker gave the sandbox away first; nothing of this lease ran in it"}, l.pool.forgo)
}

// finish ends the lease once; what becomes of the sandbox, letGo decides.
func (l *lease) finish(f Fate, letGo func(Sandbox)) {
	l.mu.Lock()
	if l.ended {
		l.mu.Unlock()
		return
	}
	l.ended = true
	l.fate = f
	close(l.dead)
	ch, hooks := l.ch, l.onEnd
	if l.guest {
		letGo = func(sb Sandbox) { l.pool.endForeignAfter(l.lastWord, sb) }
	}
	l.hardEnd.Stop()
	if l.grace != nil {
		l.grace.Stop()
	}
	l.mu.Unlock()
	for _, h := range hooks {
		h()
	}
	letGo(l.sb)
	if ch != nil {
		ch.Close()
	}
}

// onceEnded calls f when the lease ends, at once if it has.
func (l *lease) onceEnded(f func()) {
	l.mu.Lock()
	ended := l.ended
	if !ended {
		l.onEnd = append(l.onEnd, f)
	}
	l.mu.Unlock()
	if ended {
		f()
	}
}

// abandon stops the lease's timers and closes its channel; the sandbox lives on
// for the next broker.
func (l *lease) abandon() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.hardEnd.Stop()
	if l.grace != nil {
		l.grace.Stop()
	}
	if l.ch != nil {
		l.ch.Close()
	}
}

// attach counts a client of a run, which stops the grace.
func (l *lease) attach() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.clients++
	if l.grace != nil {
		l.grace.Stop()
		l.grace = nil
	}
}

// detach counts one less; a run without any ends after the grace.
func (l *lease) detach() {
	l.hurry()
	l.mu.Lock()
	defer l.mu.Unlock()
	l.clients--
	if l.kind != KindRun || l.clients > 0 || l.ended || l.guest {
		return
	}
	l.grace = time.AfterFunc(l.pool.cfg.DetachGrace, func() {
		l.end(Fate{Reason: wire.ReasonCanceled, Message: "no client came back within the detach grace"})
	})
}

// shared reports whether another stream than the caller's is attached: its client
// may have come back before the broker noticed that a connection is dead.
func (l *lease) shared() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.clients > 1
}

// binding is what the runner is told of the lease.
func (l *lease) binding() channel.Bind { return channel.Bind{Lease: l.id, Tenant: l.tenant} }

// bind tells the runner whose its sandbox is, until it has understood. The lease's
// programs do not wait for it: each of them binds too, and the first one wins.
func (l *lease) bind() {
	pause := time.NewTimer(0)
	defer pause.Stop()
	for {
		ch, err := l.channel(l.pool.life)
		if err != nil {
			return // the lease or the broker has ended
		}
		ctx, cancel := context.WithTimeout(l.pool.life, bindTimeout)
		err = ch.Bind(ctx, l.binding())
		cancel()
		switch {
		case err == nil:
			l.mark()
			return
		case channel.IsBoundElsewhere(err):
			l.boundElsewhere()
			return
		}
		l.pool.log.Warn("a sandbox could not be bound yet", "sandbox", l.sb.ID().Name, "error", err)
		pause.Reset(redialPause)
		select {
		case <-pause.C:
		case <-l.dead:
			return
		case <-l.pool.life.Done():
			return
		}
	}
}

// record writes the lease where other brokers find it. It comes after the Bind:
// a crash in between loses the lease, and the sandbox ends at its own end. A run
// that is over before recordDelay needs no record.
//
// It is tried until the lease ends: the record also moves the sandbox's own end from the
// stock's to the lease's. And it outlives the broker's life a little: a client that has
// the handle already must find the lease at the next broker.
func (l *lease) record() {
	if !l.settled() {
		return
	}
	ctx, cancel := l.pool.outlive(time.Until(l.until))
	defer cancel()
	if l.guarded != nil {
		<-l.guarded // else the stock's last move of the end could come after this one
	}
	r := Record{Lease: l.id, Tenant: l.tenant, Kind: l.kind, Exec: l.exec, Boot: l.boot, Until: l.until, Bound: l.isBound()}
	pause := time.NewTimer(0)
	defer pause.Stop()
	for backoff := endBackoffMin; ; backoff = min(2*backoff, endBackoffMax) {
		attempt, done := context.WithTimeout(ctx, recordAttempt)
		err := l.sb.Record(attempt, r)
		done()
		if err == nil {
			return
		}
		l.pool.log.Warn("a lease could not be recorded yet", "sandbox", l.sb.ID().Name, "error", err)
		pause.Reset(backoff)
		select {
		case <-pause.C:
		case <-l.dead:
			return
		case <-ctx.Done():
			l.pool.log.Error("a lease was not recorded: other replicas do not know it", "sandbox", l.sb.ID().Name, "error", err)
			return
		}
	}
}

// settled waits until the lease is worth a record: its sandbox is bound, and a run
// has lasted for recordDelay. When the broker ends, or the client has left, it must be
// written at once. It is false when the lease is dead.
func (l *lease) settled() bool {
	select {
	case <-l.bound:
	case <-l.pool.life.Done():
	case <-l.dead:
		return false
	}
	if l.kind != KindRun {
		return true
	}
	t := time.NewTimer(recordDelay)
	defer t.Stop()
	select {
	case <-t.C:
	case <-l.wanted:
	case <-l.pool.life.Done():
	case <-l.dead:
		return false
	}
	return true
}

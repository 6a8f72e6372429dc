package broker

import (
	"container/list"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/sandbox-broker/sandbox-broker/internal/channel"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

const (
	// takeBackoffMin and takeBackoffMax bound the pause after failed takes.
	takeBackoffMin = 500 * time.Millisecond
	takeBackoffMax = 15 * time.Second
	// refillDelay is the pause before a sandbox that was handed out of the stock is
	// replaced, unless somebody waits: its first program comes first.
	refillDelay = 50 * time.Millisecond
	// dialAttempts bounds how often a fresh sandbox is dialled before it is given up.
	dialAttempts = 3
	// dialTimeout bounds one of these attempts.
	dialTimeout = 15 * time.Second
)

// member is a sandbox with an open channel that belongs to nobody yet.
type member struct {
	sb        Sandbox
	ch        *channel.Client
	languages []string // those it has an interpreter for
	bound     bool     // its runner knows its lease
	contested bool     // it was another replica's, which may not know that it is silent

	until    time.Time     // when it ends if nobody moves that; its guard's; zero: not known
	ready    bool          // its spares wait for code, or never will; guarded by the pool's mu
	prepared bool          // its runner has started its spares, or has none; guarded likewise
	left     chan struct{} // closed when it leaves the stock; nil: it was never in it
	guarded  chan struct{} // closed when its guard is over; nil likewise
}

// waiter is a caller in the queue. It is answered once, on a channel with room
// for one.
type waiter struct {
	answer chan waitAnswer
}

type waitAnswer struct {
	m   *member
	err error
}

// pool serves one entry of the configuration. Its invariant: taking + stock +
// leased + ending never exceeds MaxSandboxes, less what other replicas were seen to
// have, and each take under way is meant either for a caller in the queue or for the
// stock.
type pool struct {
	cfg      PoolConfig
	verify   bool // a sandbox without one of the languages is of no use
	provider Provider
	replica  string
	roster   Roster
	foreign  func(pool string) int                                     // sandboxes of other replicas; nil: there are none
	tell     func()                                                    // makes the other replicas know of endings; nil: there are none
	endOwned func(ctx context.Context, sb Sandbox, lease string) error // Shared.EndOwned; nil: there are none
	secret   secret
	metrics  *metrics
	log      *slog.Logger

	life context.Context //nolint:containedctx // ends when the broker does: takes belong to it, not to callers
	jobs sync.WaitGroup  // goroutines of the pool

	mu       sync.Mutex // guards the rest; no I/O under it
	waiters  *list.List // of *waiter, oldest first
	stock    []*member  // oldest first
	taking   int
	leased   int
	ending   int
	failures int         // rounds of takes that failed in a row
	lastFail error       // why the last of them did; nil if there is none
	retry    *time.Timer // when the next take may start after a failure; nil: now
	refill   *time.Timer // when the stock's next refill starts; nil: none is due
	warnings []string    // what the sandboxes' spares had to say last
	closed   bool
}

func newPool(life context.Context, cfg PoolConfig, verify bool, p Provider, replica string, s secret, m *metrics, log *slog.Logger) *pool {
	return &pool{cfg: cfg, verify: verify, provider: p, replica: replica, roster: alone{}, secret: s, metrics: m, log: log.With("pool", cfg.Name), life: life, waiters: list.New()}
}

// start makes the stock what it should be, as far as there is room.
func (p *pool) start() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.shed()
	p.fill()
}

// acquire waits for a sandbox: at most QueueTimeout, at most until ctx ends.
func (p *pool) acquire(ctx context.Context) (*member, error) {
	began := time.Now()
	m, err := p.wait(ctx)
	p.metrics.queue.WithLabelValues(p.cfg.Name, outcome(err)).Observe(time.Since(began).Seconds())
	return m, err
}

func (p *pool) wait(ctx context.Context) (*member, error) {
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return nil, wire.Errorf(wire.CodeUnavailable, "the broker is shutting down")
	}
	if m := p.popStock(); m != nil {
		p.leased++
		p.fillSoon()
		p.mu.Unlock()
		return m, nil
	}
	if p.waiters.Len() >= p.cfg.QueueLength {
		p.mu.Unlock()
		return nil, p.exhausted("queue_full", "%d callers wait already", p.cfg.QueueLength)
	}
	w := &waiter{answer: make(chan waitAnswer, 1)}
	place := p.waiters.PushBack(w)
	p.fill()
	p.mu.Unlock()

	timeout := time.NewTimer(p.cfg.QueueTimeout)
	defer timeout.Stop()
	var err error
	select {
	case a := <-w.answer:
		return a.m, a.err
	case <-ctx.Done():
		err = context.Cause(ctx)
	case <-timeout.C:
		err = p.exhausted("queue_timeout", "no sandbox became free within %s", p.cfg.QueueTimeout)
	}
	p.mu.Lock()
	p.waiters.Remove(place)
	p.gauge()
	p.mu.Unlock()
	select {
	case a := <-w.answer: // it was answered just before it gave up
		if a.m != nil {
			p.giveBack(a.m)
		}
	default:
	}
	return nil, err
}

func (p *pool) exhausted(reason, format string, args ...any) error {
	e := wire.Errorf(wire.CodeExhausted, "the pool %q has no sandbox left (maxSandboxes %d): "+format, append([]any{p.cfg.Name, p.cfg.MaxSandboxes}, args...)...)
	e.Reason, e.RetryAfterMS = reason, time.Second.Milliseconds()
	return e
}

// giveBack passes on a member that was handed to a caller who no longer wants
// it. No code ran in it and it is bound to nobody.
func (p *pool) giveBack(m *member) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.leased--
	p.place(m)
}

// place gives a member to the head of the queue, else to the stock, else ends
// it. mu is held; the member is in no count.
func (p *pool) place(m *member) {
	if w := p.nextWaiter(); w != nil {
		p.leased++
		p.gauge() // before the caller goes on
		w.answer <- waitAnswer{m: m}
		return
	} else if !p.closed && len(p.stock) < p.share() {
		p.stock = append(p.stock, m)
		left, guarded := make(chan struct{}), make(chan struct{})
		m.left, m.guarded = left, guarded
		p.jobs.Go(func() {
			defer close(guarded)
			p.guard(m, left)
		})
	} else {
		p.discard(m)
	}
	p.gauge()
}

// nextWaiter removes the oldest waiter. mu is held.
func (p *pool) nextWaiter() *waiter {
	e := p.waiters.Front()
	if e == nil {
		return nil
	}
	p.waiters.Remove(e)
	return e.Value.(*waiter)
}

// fill starts as many takes as are missing. mu is held.
func (p *pool) fill() {
	defer p.gauge()
	if p.closed || p.retry != nil {
		return
	}
	n := p.waiters.Len() + min(p.share()-len(p.stock), p.cfg.Refills) - p.taking
	if n <= 0 {
		return // the rest asks the provider
	}
	room := p.cfg.MaxSandboxes - p.taking - len(p.stock) - p.leased - p.ending
	if p.foreign != nil {
		room -= p.foreign(p.cfg.Name)
	}
	n = min(n, room)
	if warm, ok := p.provider.(WarmCounter); ok && p.cfg.Cold == ColdQueue {
		n = min(n, max(1, warm.Warm(p.cfg.WarmPool))-p.taking)
	}
	for range n {
		p.taking++
		p.jobs.Go(p.take)
	}
}

// fillSoon fills after refillDelay. mu is held.
func (p *pool) fillSoon() {
	p.gauge()
	if p.closed || p.refill != nil {
		return
	}
	p.refill = time.AfterFunc(refillDelay, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.refill = nil
		p.fill()
	})
}

// take gets one sandbox and places it.
func (p *pool) take() {
	began := time.Now()
	m, err := p.open()
	p.metrics.take.WithLabelValues(p.cfg.Name, outcome(err)).Observe(time.Since(began).Seconds())
	p.mu.Lock()
	defer p.mu.Unlock()
	p.taking--
	if err == nil {
		p.failures, p.lastFail = 0, nil
		p.place(m)
		p.fill()
		return
	}
	p.failed(err)
}

// failed tells callers about a failed take and pauses the filler. A failure that
// waiting cannot mend goes to everyone in the queue, another to its head. mu is
// held.
func (p *pool) failed(err error) {
	if p.life.Err() == nil {
		p.log.Warn("no sandbox could be taken", "error", err, "failures", p.failures+1)
	}
	p.lastFail = err
	all := errors.Is(err, wire.ErrNotReady)
	for w := p.nextWaiter(); w != nil; w = p.nextWaiter() {
		w.answer <- waitAnswer{err: err}
		if !all {
			break
		}
	}
	if p.closed || p.retry != nil {
		return
	}
	pause := min(takeBackoffMin<<min(p.failures, 10), takeBackoffMax)
	p.failures++ // takes that fail beside one another are one failure
	p.retry = time.AfterFunc(pause, func() {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.retry = nil
		p.fill()
	})
}

// open takes a sandbox from the provider and opens its channel.
func (p *pool) open() (*member, error) {
	ctx, cancel := context.WithTimeout(p.life, p.cfg.ReadyTimeout)
	defer cancel()
	ctx, span := tracer.Start(ctx, "take")
	defer span.End()
	until := time.Now().Add(stockLife)
	sb, err := p.provider.Take(ctx, TakeRequest{Owner: p.replica, Pool: p.cfg.Name, WarmPool: p.cfg.WarmPool, Until: until})
	if err != nil {
		span.RecordError(err)
		return nil, err
	}
	for range dialAttempts {
		var ch *channel.Client
		if ch, err = openChannel(ctx, sb, p.secret, ""); err == nil {
			var languages []string
			if languages, err = p.useful(ctx, ch); err == nil {
				return &member{sb: sb, ch: ch, languages: languages, until: until}, nil
			}
			ch.Close()
		}
		if ctx.Err() != nil || errors.Is(err, wire.ErrNotReady) {
			break
		}
	}
	span.RecordError(err)
	p.end(sb, "")
	return nil, fmt.Errorf("opening the channel of sandbox %s: %w", sb.ID().Name, err)
}

// useful tells the languages of a sandbox, and checks that it has those which the
// pool was configured with.
func (p *pool) useful(ctx context.Context, ch *channel.Client) ([]string, error) {
	st, err := ch.Status(ctx)
	if err != nil || !p.verify {
		return st.Languages, err
	}
	for _, l := range p.cfg.Languages {
		if !slices.Contains(st.Languages, l) {
			return nil, wire.NotReady(wire.ReasonConfiguration, "the sandboxes of the pool %q have no interpreter for %s (they have %d others: %s)", p.cfg.Name, l, len(st.Languages), strings.Join(st.Languages, ", "))
		}
	}
	return st.Languages, nil
}

// describe tells users of the pool.
func (p *pool) describe() wire.Pool {
	c := p.cfg
	p.mu.Lock()
	defer p.mu.Unlock()
	d := wire.Pool{
		Name: c.Name, Languages: c.Languages, MaxSandboxes: c.MaxSandboxes, CodeLimit: c.CodeLimit,
		TimeoutMS: c.DefaultTimeout.Milliseconds(), MaxTimeoutMS: c.MaxTimeout.Milliseconds(), Stock: p.share(), InStock: p.ready(),
		Warnings: slices.Clone(p.warnings),
	}
	if p.lastFail != nil {
		d.Problem = notWire(p.lastFail, "taking a sandbox").Error()
	}
	return d
}

// openChannel dials a sandbox's runner. expectBoot is as in channel.Open.
func openChannel(ctx context.Context, sb Sandbox, s secret, expectBoot string) (*channel.Client, error) {
	ctx, cancel := context.WithTimeout(ctx, dialTimeout)
	defer cancel()
	ctx, span := tracer.Start(ctx, "channel.open")
	defer span.End()
	conn, err := sb.Dial(ctx)
	if err != nil {
		return nil, err
	}
	return channel.Open(ctx, conn, s.channelKey(sb.ID()), expectBoot)
}

func (p *pool) gauge() {
	g := p.metrics.sandboxes
	g.WithLabelValues(p.cfg.Name, "taking").Set(float64(p.taking))
	g.WithLabelValues(p.cfg.Name, "stock").Set(float64(len(p.stock)))
	g.WithLabelValues(p.cfg.Name, "leased").Set(float64(p.leased))
	g.WithLabelValues(p.cfg.Name, "ending").Set(float64(p.ending))
	p.metrics.waiting.WithLabelValues(p.cfg.Name).Set(float64(p.waiters.Len()))
}

// close refuses callers, ends the stock and waits for the pool's goroutines.
// p.life must have ended or end soon.
func (p *pool) close() {
	p.mu.Lock()
	p.closed = true
	for _, t := range []*time.Timer{p.retry, p.refill} {
		if t != nil {
			t.Stop()
		}
	}
	stock := p.stock
	p.stock = nil
	for _, m := range stock {
		close(m.left)
		p.discard(m)
	}
	for w := p.nextWaiter(); w != nil; w = p.nextWaiter() {
		w.answer <- waitAnswer{err: wire.Errorf(wire.CodeUnavailable, "the broker is shutting down")}
	}
	p.mu.Unlock()
	p.jobs.Wait()
}

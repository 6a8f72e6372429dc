package broker

import (
	"context"
	"errors"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/sandbox-broker/sandbox-broker/internal/channel"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

const (
	// stockLife is how far ahead the end of a sandbox in stock lies: should every
	// broker die, the stock is gone by then. About half of it later that end is moved.
	stockLife = 10 * time.Minute
	// renewAgain is the pause after a move that failed. What has less than stockRest left
	// then is replaced: whoever is given it needs the time until its lease is recorded.
	renewAgain = 15 * time.Second
	stockRest  = 2 * time.Minute
)

// renewIn is how long it is until an end is moved: not the same for sandboxes that came
// together, and at once if nobody knows it.
func renewIn(until time.Time) time.Duration {
	// Before it is compared: a difference saturates.
	at := until.Add(-stockLife/2 - rand.N(stockLife/10)) //nolint:gosec // no secret
	return max(0, time.Until(at))
}

// prepare makes a sandbox start its spare interpreters and waits until they are ready,
// at most until ctx ends. What they could not do is the pool's to tell: all of its
// sandboxes have the same image and the same configuration.
func (p *pool) prepare(ctx context.Context, m *member) {
	warnings, err := p.spares(ctx, m)
	p.mu.Lock()
	defer p.mu.Unlock()
	m.prepared = err == nil || errors.Is(err, errNoSpares)
	if err != nil {
		return
	}
	if !slices.Equal(warnings, p.warnings) {
		p.log.Warn("the sandboxes' spare interpreters have problems", "problems", warnings)
	}
	p.warnings = warnings
}

// errNoSpares says that a sandbox is to have none.
var errNoSpares = errors.New("the pool has no spare interpreters")

// spares makes a sandbox start its spare interpreters, and says what went wrong.
func (p *pool) spares(ctx context.Context, m *member) (warnings []string, err error) {
	var spares []string
	for _, l := range p.cfg.Spares {
		if slices.Contains(m.languages, l) {
			spares = append(spares, l)
		}
	}
	if len(spares) == 0 {
		return nil, errNoSpares
	}
	ctx, cancel := context.WithTimeout(ctx, dialTimeout+channel.PrepareWait)
	defer cancel()
	done, err := m.ch.Prepare(ctx, channel.Prepare{Spares: spares, Preload: p.cfg.Preload})
	if err != nil {
		if ctx.Err() == nil {
			p.log.Warn("a sandbox did not start its spare interpreters", "sandbox", m.sb.ID().Name, "error", err)
		}
		return nil, err
	}
	for lang, s := range done.Spares {
		for _, problem := range s.Problems {
			warnings = append(warnings, "spare "+lang+": "+problem)
		}
	}
	slices.Sort(warnings)
	return warnings, nil
}

// ready counts the sandboxes in stock whose spares wait for code. mu is held.
func (p *pool) ready() int {
	n := 0
	for _, m := range p.stock {
		if m.ready {
			n++
		}
	}
	return n
}

// best is the place of the sandbox to hand out: the oldest that is ready, else the
// oldest. mu is held, and there is one.
func (p *pool) best() int {
	return max(0, slices.IndexFunc(p.stock, func(m *member) bool { return m.ready }))
}

// popStock takes a living member of the stock. mu is held.
func (p *pool) popStock() *member {
	for len(p.stock) > 0 {
		m := p.remove(p.best())
		select {
		case <-m.ch.Done():
			p.discard(m) // its guard has not noticed yet
		default:
			return m
		}
	}
	return nil
}

// guard watches a member while it is in stock: it leaves when its channel
// breaks, and its end is moved before it comes.
func (p *pool) guard(m *member, left <-chan struct{}) {
	ctx, cancel := context.WithCancel(p.life)
	defer cancel()
	p.jobs.Go(func() {
		p.prepare(ctx, m)
		p.mu.Lock()
		defer p.mu.Unlock()
		m.ready = true
	})
	renew := time.NewTimer(renewIn(m.until))
	defer renew.Stop()
	for {
		select {
		case <-p.life.Done():
			return
		case <-left:
			return
		case <-m.ch.Done():
			p.drop(m)
			return
		case <-renew.C:
			until := time.Now().Add(stockLife)
			ctx, cancel := context.WithTimeout(p.life, dialTimeout)
			err := m.sb.Extend(ctx, until)
			cancel()
			switch {
			case errors.Is(err, wire.ErrConflict):
				p.lose(m.sb.ID())
				return
			case err == nil:
				m.until = until
				renew.Reset(renewIn(until))
				continue
			case time.Until(m.until) < stockRest:
				p.log.Warn("a sandbox in stock could not be renewed, and is replaced", "sandbox", m.sb.ID().Name, "error", err)
				p.drop(m)
				return
			}
			p.log.Warn("a sandbox in stock could not be renewed yet", "sandbox", m.sb.ID().Name, "error", err)
			renew.Reset(renewAgain)
		}
	}
}

// shed ends the oldest of a stock that is larger than this replica's share: another one
// has come, and its callers would wait for room. It comes every tendEvery, one at a time.
// mu is held.
func (p *pool) shed() {
	if !p.closed && len(p.stock) > p.share() {
		p.discard(p.remove(0))
	}
}

// isPrepared reports whether a sandbox has its spares, or shall have none.
func (p *pool) isPrepared(m *member) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return m.prepared
}

// drop removes a member from the stock and ends it. It does nothing if the
// member has been handed out meanwhile.
func (p *pool) drop(m *member) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := slices.Index(p.stock, m); i >= 0 {
		p.discard(p.remove(i))
		p.fill()
	}
}

// remove takes the member at a place out of the stock. mu is held.
func (p *pool) remove(i int) *member {
	m := p.stock[i]
	p.stock = slices.Delete(p.stock, i, i+1)
	close(m.left)
	return m
}

// died drops a sandbox from the stock, if it is there.
func (p *pool) died(id SandboxID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := p.find(id); i >= 0 {
		p.discard(p.remove(i))
		p.fill()
	}
}

// lose removes a sandbox from the stock, if it is there, without ending it: it is
// another replica's now.
func (p *pool) lose(id SandboxID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if i := p.find(id); i >= 0 {
		p.jobs.Go(p.remove(i).ch.Close)
		p.fill()
	}
}

// find is a sandbox's place in the stock, or -1. mu is held.
func (p *pool) find(id SandboxID) int {
	return slices.IndexFunc(p.stock, func(m *member) bool { return m.sb.ID() == id })
}

package broker

import (
	"context"
	"slices"
	"time"

	"github.com/sandbox-broker/sandbox-broker/internal/channel"
)

// stockLife is how far ahead the end of a sandbox in stock lies: should every
// broker die, the stock is gone by then. Half of it later that end is moved.
const stockLife = 10 * time.Minute

// spareLook is when a sandbox in stock is asked how its spare interpreters are: by
// then one module that hangs has been given up.
const spareLook = 15 * time.Second

// prepare makes a sandbox start its spare interpreters; nobody waits for them.
func (p *pool) prepare(m *member) {
	var spares []string
	for _, l := range p.cfg.Spares {
		if slices.Contains(m.languages, l) {
			spares = append(spares, l)
		}
	}
	if len(spares) == 0 {
		return
	}
	ctx, cancel := context.WithTimeout(p.life, dialTimeout)
	defer cancel()
	if err := m.ch.Prepare(ctx, channel.Prepare{Spares: spares, Preload: p.cfg.Preload}); err != nil {
		p.log.Warn("a sandbox did not start its spare interpreters", "sandbox", m.sb.ID().Name, "error", err)
	}
}

// look notes what a sandbox's spares could not do. It is the pool's to tell: all of
// its sandboxes have the same image and the same configuration.
func (p *pool) look(m *member) {
	ctx, cancel := context.WithTimeout(p.life, dialTimeout)
	defer cancel()
	st, err := m.ch.Status(ctx)
	if err != nil {
		return // its guard finds out
	}
	var warnings []string
	for lang, s := range st.Spares {
		for _, problem := range s.Problems {
			warnings = append(warnings, "spare "+lang+": "+problem)
		}
	}
	slices.Sort(warnings)
	p.mu.Lock()
	defer p.mu.Unlock()
	if !slices.Equal(warnings, p.warnings) {
		p.log.Warn("the sandboxes' spare interpreters have problems", "problems", warnings)
	}
	p.warnings = warnings
}

// popStock takes the oldest living member of the stock. mu is held.
func (p *pool) popStock() *member {
	for len(p.stock) > 0 {
		m := p.stock[0]
		p.stock[0] = nil // the array lives on, and would hold it
		p.stock = p.stock[1:]
		close(m.left)
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
	p.prepare(m)
	renew := time.NewTicker(stockLife / 2)
	defer renew.Stop()
	look := time.NewTimer(spareLook)
	defer look.Stop()
	for {
		select {
		case <-p.life.Done():
			return
		case <-left:
			return
		case <-m.ch.Done():
			p.drop(m)
			return
		case <-look.C:
			p.look(m)
		case <-renew.C:
			until := time.Now().Add(stockLife)
			ctx, cancel := context.WithTimeout(p.life, dialTimeout)
			err := m.sb.Extend(ctx, until)
			cancel()
			if err != nil {
				p.log.Warn("a sandbox in stock could not be renewed", "sandbox", m.sb.ID().Name, "error", err)
				p.drop(m)
				return
			}
		}
	}
}

// drop removes a member from the stock and ends it. It does nothing if the
// member has been handed out meanwhile.
func (p *pool) drop(m *member) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, s := range p.stock {
		if s == m {
			p.stock = append(p.stock[:i], p.stock[i+1:]...)
			close(m.left)
			p.discard(m)
			p.fill()
			return
		}
	}
}

// died drops a sandbox from the stock, if it is there.
func (p *pool) died(id SandboxID) {
	p.mu.Lock()
	i := p.find(id)
	var m *member
	if i >= 0 {
		m = p.stock[i]
	}
	p.mu.Unlock()
	if m != nil {
		p.drop(m)
	}
}

// lose removes a sandbox from the stock, if it is there, without ending it: it is
// another replica's now.
func (p *pool) lose(id SandboxID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := p.find(id)
	if i < 0 {
		return
	}
	m := p.stock[i]
	p.stock = slices.Delete(p.stock, i, i+1)
	close(m.left)
	p.jobs.Go(m.ch.Close)
	p.fill()
}

// find is a sandbox's place in the stock, or -1. mu is held.
func (p *pool) find(id SandboxID) int {
	return slices.IndexFunc(p.stock, func(m *member) bool { return m.sb.ID() == id })
}

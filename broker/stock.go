package broker

import (
	"context"
	"time"
)

// stockLife is how far ahead the end of a sandbox in stock lies: should every
// broker die, the stock is gone by then. Half of it later that end is moved.
const stockLife = 10 * time.Minute

// popStock takes the oldest living member of the stock. mu is held.
func (p *pool) popStock() *member {
	for len(p.stock) > 0 {
		m := p.stock[0]
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
	renew := time.NewTicker(stockLife / 2)
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
	var m *member
	for _, s := range p.stock {
		if s.sb.ID() == id {
			m = s
		}
	}
	p.mu.Unlock()
	if m != nil {
		p.drop(m)
	}
}

package broker

// discard ends a member that is in no count. mu is held.
func (p *pool) discard(m *member) {
	p.ending++
	p.jobs.Go(func() {
		m.ch.Close()
		p.endStock(m.sb)
		p.freed()
	})
}

// release ends a leased sandbox and frees its place; it returns at once. When
// the broker has closed, the sandbox is the next one's to end.
func (p *pool) release(sb Sandbox) { p.releaseAfter(func() {}, sb, "") }

// releaseAfter is release of the sandbox of a lease; before it ends something is done.
func (p *pool) releaseAfter(before func(), sb Sandbox, lease string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return
	}
	p.leased--
	p.ending++
	p.gauge()
	p.jobs.Go(func() {
		before()
		p.end(sb, lease)
		p.freed()
	})
}

// endForeignAfter is that for a sandbox that another replica counts.
func (p *pool) endForeignAfter(before func(), sb Sandbox) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		p.jobs.Go(func() {
			before()
			p.endForeign(sb)
		})
	}
}

// forgo gives up a leased sandbox that belongs to somebody else.
func (p *pool) forgo(Sandbox) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.leased--
	p.fill()
}

func (p *pool) freed() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ending--
	p.fill()
}

// adopt counts a lease that an earlier broker left.
func (p *pool) adopt() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.leased++
	p.gauge()
}

// Package cutproxy is a bad network for tests: a TCP proxy on loopback that cuts
// connections, at random bytes of a seeded source or when it is told to.
package cutproxy

import (
	"fmt"
	"math"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"time"
)

// maxArrivals bounds the connections whose arrival is remembered.
const maxArrivals = 4096

// Plan says when connections are cut by themselves. The zero value never does.
type Plan struct {
	// Seed makes the bytes after which connections are cut repeatable; when they
	// flow is not.
	Seed uint64
	// Cuts bounds how many connections are cut.
	Cuts int
	// Spare is how many bytes the first connection may carry each way before
	// anything happens to it.
	Spare int64
	// Least and Most bound how many bytes a connection carries each way; it is cut where
	// that is used up first. Small numbers are as likely as large ones, in magnitude.
	Least, Most int64
}

// Proxy passes connections on. Its methods may be called at any time.
type Proxy struct {
	listener net.Listener
	plan     Plan
	all      sync.WaitGroup

	mu       sync.Mutex // guards the rest
	random   *rand.Rand
	targets  []string // hosts and ports
	refusing bool
	accepted int
	arrivals []time.Time // the newest ones
	cuts     int
	open     map[*link]struct{}
	closed   bool
}

// Listen starts a proxy before the server at target, a host and a port.
func Listen(target string, plan Plan) (*Proxy, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("cutproxy: %w", err)
	}
	p := &Proxy{listener: l, plan: plan, targets: []string{target}, open: map[*link]struct{}{}, random: rand.New(rand.NewPCG(plan.Seed, 0))} //nolint:gosec // it shall be repeatable
	p.all.Go(p.accept)
	return p, nil
}

// Addr is where clients connect to, a host and a port.
func (p *Proxy) Addr() string { return p.listener.Addr().String() }

// SetTarget sends later connections to another server, or to any of several.
func (p *Proxy) SetTarget(targets ...string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.targets = targets
}

// Refuse makes the proxy close new connections at once, or no longer.
func (p *Proxy) Refuse(refuse bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.refusing = refuse
}

// Accepted is how many connections there were, refused ones too.
func (p *Proxy) Accepted() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.accepted
}

// Arrivals is when connections were made since a moment, refused ones too; of the last
// 4096 ones.
func (p *Proxy) Arrivals(since time.Time) []time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []time.Time
	for _, t := range p.arrivals {
		if !t.Before(since) {
			out = append(out, t)
		}
	}
	return out
}

// Cuts is how many connections were cut at a byte.
func (p *Proxy) Cuts() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.cuts
}

// Cut breaks every open connection.
func (p *Proxy) Cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.open {
		l.cut()
	}
}

// CutAfter breaks each open connection when it has carried some more bytes, at most
// most, in a direction drawn for it. Small numbers are as likely as large ones, in
// magnitude. It reports how many connections that concerns.
func (p *Proxy) CutAfter(most int64) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	for l := range p.open {
		left := [...]*atomic.Int64{&l.up, &l.down}[p.random.IntN(2)]
		left.Store(p.draw(1, most))
	}
	return len(p.open)
}

// Close ends the proxy and waits for its goroutines.
func (p *Proxy) Close() {
	p.mu.Lock()
	p.closed = true
	for l := range p.open {
		l.cut()
	}
	p.mu.Unlock()
	_ = p.listener.Close()
	p.all.Wait()
}

func (p *Proxy) accept() {
	for {
		client, err := p.listener.Accept()
		if err != nil {
			return
		}
		p.all.Go(func() { p.serve(client) })
	}
}

// link is one connection with both its halves.
type link struct {
	client, server net.Conn
	up, down       atomic.Int64 // how many more bytes it may carry
	counted        bool         // as cut at a byte: both ways may be used up; guarded by Proxy.mu
}

// cut ends both halves without a farewell.
func (l *link) cut() {
	for _, c := range []net.Conn{l.client, l.server} {
		if t, ok := c.(*net.TCPConn); ok {
			_ = t.SetLinger(0) // what was not sent yet is lost
		}
		_ = c.Close()
	}
}

func (p *Proxy) serve(client net.Conn) {
	p.mu.Lock()
	p.accepted++
	p.arrivals = append(p.arrivals[max(0, len(p.arrivals)-maxArrivals+1):], time.Now())
	refuse, target := p.refusing || p.closed, p.targets[p.random.IntN(len(p.targets))]
	up, down := p.budgets()
	p.mu.Unlock()
	if refuse {
		_ = client.Close()
		return
	}
	server, err := net.Dial("tcp", target)
	if err != nil {
		_ = client.Close()
		return
	}
	l := &link{client: client, server: server}
	l.up.Store(up)
	l.down.Store(down)
	p.mu.Lock()
	p.open[l] = struct{}{}
	if p.closed {
		l.cut()
	}
	p.mu.Unlock()
	var halves sync.WaitGroup
	halves.Go(func() { p.pass(l, server, client, &l.up) })
	halves.Go(func() { p.pass(l, client, server, &l.down) })
	halves.Wait()
	p.mu.Lock()
	delete(p.open, l)
	p.mu.Unlock()
}

// budgets are how many bytes a new connection may carry each way. mu is held.
func (p *Proxy) budgets() (up, down int64) {
	if p.cuts >= p.plan.Cuts {
		return math.MaxInt64, math.MaxInt64
	}
	up, down = p.draw(p.plan.Least, p.plan.Most), p.draw(p.plan.Least, p.plan.Most)
	if p.accepted == 1 {
		up, down = up+p.plan.Spare, down+p.plan.Spare
	}
	return up, down
}

// draw draws a number of bytes. mu is held.
func (p *Proxy) draw(least, most int64) int64 {
	return int64(float64(least) * math.Pow(float64(most)/float64(least), p.random.Float64()))
}

// pass copies one half until it ends or has carried what is left to it, and then ends
// the link.
func (p *Proxy) pass(l *link, to, from net.Conn, left *atomic.Int64) {
	defer l.cut()
	buf := make([]byte, 32<<10)
	for {
		n, err := from.Read(buf)
		if rest := left.Add(int64(-n)); rest <= 0 {
			_, _ = to.Write(buf[:max(0, min(rest+int64(n), int64(n)))])
			p.mu.Lock()
			if !l.counted {
				l.counted = true
				p.cuts++
			}
			p.mu.Unlock()
			return
		}
		if _, werr := to.Write(buf[:n]); werr != nil || err != nil {
			return
		}
	}
}

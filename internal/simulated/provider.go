package simulated

import (
	"context"
	"errors"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/sandbox-broker/sandbox-broker/broker"
)

// maxConnecting bounds the connections that are being made at once: a socket
// whose queue is full refuses instead of letting wait.
const maxConnecting = 64

// isolation is what the sandboxes say of themselves.
const isolation = "none (simulated)"

// ErrClosed is what a closed provider answers.
var ErrClosed = errors.New("simulated: the provider is closed")

// Provider implements broker.Provider. Its warm pools are never empty.
type Provider struct {
	runners    *process
	delays     Delays
	seed       uint64
	connecting chan struct{} // one place for each connection being made

	// orders guards the runners' orders. Sandboxes get their numbers under it, so
	// that they start in the numbers' order.
	orders sync.Mutex

	mu        sync.Mutex // guards the rest; no I/O under it
	closed    bool
	taken     uint64 // how many were asked for: whose turn it is to draw delays
	last      uint64 // the newest sandbox's number
	sandboxes map[uint64]*Sandbox
	died      func(broker.SandboxID, broker.Fate)
	dead      map[uint64]*Sandbox // died, and not reported yet
	unheard   []death             // to be reported, but nobody watches
}

type death struct {
	id   broker.SandboxID
	fate broker.Fate
}

var _ broker.Provider = (*Provider)(nil)

// New starts the runners and makes a provider of them. The same seed gives the
// same delays, in the order in which sandboxes are asked for. ctx bounds the start
// alone; Close ends both.
func New(ctx context.Context, d Delays, seed uint64) (*Provider, error) {
	r, err := startProcess(ctx)
	if err != nil {
		return nil, fmt.Errorf("simulated: %w", err)
	}
	return &Provider{
		runners: r, delays: d, seed: seed, connecting: make(chan struct{}, maxConnecting),
		sandboxes: map[uint64]*Sandbox{}, dead: map[uint64]*Sandbox{},
	}, nil
}

// RunnersPID is the runners' process, for who measures it.
func (p *Provider) RunnersPID() int { return p.runners.cmd.Process.Pid }

// Live is how many sandboxes exist.
func (p *Provider) Live() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.sandboxes)
}

// Close ends all sandboxes, and the process of the runners. No death is reported
// any more.
func (p *Provider) Close() error {
	p.mu.Lock()
	p.closed = true
	left := make([]*Sandbox, 0, len(p.sandboxes)+len(p.dead))
	for _, s := range p.sandboxes {
		left = append(left, s)
	}
	for _, s := range p.dead {
		left = append(left, s)
	}
	clear(p.sandboxes)
	clear(p.dead)
	p.mu.Unlock()
	for _, s := range left {
		s.stopTimers()
	}
	if err := p.runners.stop(); err != nil {
		return fmt.Errorf("simulated: %w", err)
	}
	return nil
}

// Take implements broker.Provider.
func (p *Provider) Take(ctx context.Context, req broker.TakeRequest) (broker.Sandbox, error) {
	p.mu.Lock()
	p.taken++
	s := &Sandbox{p: p, dice: dice{seed: p.seed, sandbox: p.taken}, pool: req.Pool}
	p.mu.Unlock()
	if err := sleep(ctx, s.dice.draw(p.delays.Claim, drawClaim, 0)); err != nil {
		return nil, fmt.Errorf("simulated: taking a sandbox: %w", err)
	}
	if err := p.begin(s); err != nil {
		return nil, fmt.Errorf("simulated: starting a sandbox: %w", err)
	}
	s.start(req.Until, s.dice.draw(p.delays.Life, drawLife, 0))
	return s, nil
}

// begin gives a sandbox its number and makes the runners answer for it.
func (p *Provider) begin(s *Sandbox) error {
	p.orders.Lock()
	defer p.orders.Unlock()
	p.mu.Lock()
	if p.closed {
		p.mu.Unlock()
		return ErrClosed
	}
	p.last++
	s.number = p.last
	name := fmt.Sprintf("sim-%08d", s.number)
	s.id = broker.SandboxID{Name: name, Claim: name + "-claim", Pod: name + "-pod"}
	p.sandboxes[s.number] = s
	p.mu.Unlock()
	err := order{orderStart, s.number}.write(p.runners.orders)
	if err != nil {
		p.forget(s)
	}
	return err
}

// forget takes a sandbox off the list; false if it is not there any more.
func (p *Provider) forget(s *Sandbox) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.sandboxes[s.number] == nil {
		return false
	}
	delete(p.sandboxes, s.number)
	return true
}

// end makes the runners forget a sandbox and cut its connections.
func (p *Provider) end(s *Sandbox) error {
	p.orders.Lock()
	defer p.orders.Unlock()
	return order{orderEnd, s.number}.write(p.runners.orders)
}

// connect opens a connection to a sandbox's runner.
func (p *Provider) connect(ctx context.Context, number uint64) (net.Conn, error) {
	select {
	case p.connecting <- struct{}{}:
		defer func() { <-p.connecting }()
	case <-ctx.Done():
		return nil, ctx.Err()
	}
	// Not a Dialer: a connection on this machine takes no time worth a context, and
	// the broker beside is what shall be measured.
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: p.runners.socket, Net: "unix"})
	if err != nil {
		return nil, err
	}
	if err := (order{orderOpen, number}).write(conn); err != nil {
		return nil, errors.Join(err, conn.Close())
	}
	return conn, nil
}

// List implements broker.Provider.
func (p *Provider) List(context.Context) ([]broker.Sandbox, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	out := make([]broker.Sandbox, 0, len(p.sandboxes))
	for _, s := range p.sandboxes {
		out = append(out, s)
	}
	return out, nil
}

// Watch implements broker.Provider.
func (p *Provider) Watch(ctx context.Context, died func(broker.SandboxID, broker.Fate)) error {
	p.mu.Lock()
	p.died = died
	news := p.unheard
	p.unheard = nil
	p.mu.Unlock()
	for _, d := range news {
		died(d.id, d.fate)
	}
	<-ctx.Done()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.died = nil
	return nil
}

// report tells of a death, once: now, or to the next who watches.
func (p *Provider) report(s *Sandbox, f broker.Fate) {
	p.mu.Lock()
	died := p.died
	_, due := p.dead[s.number]
	delete(p.dead, s.number)
	if due && died == nil {
		p.unheard = append(p.unheard, death{s.id, f})
	}
	p.mu.Unlock()
	if due && died != nil {
		died(s.id, f)
	}
}

// sleep waits for d, at most until ctx ends.
func sleep(ctx context.Context, d time.Duration) error {
	if d <= 0 {
		return ctx.Err()
	}
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return ctx.Err()
	case <-ctx.Done():
		return ctx.Err()
	}
}

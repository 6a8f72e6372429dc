//go:build linux

package local

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/sandbox-broker/sandbox-broker/broker"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// Provider implements broker.Provider and broker.WarmCounter.
type Provider struct {
	log     *slog.Logger
	state   *state
	runtime runtime
	spawner *spawner
	pools   map[string]*pool

	life context.Context //nolint:containedctx // ends with Close: sandboxes belong to it, not to callers
	end  context.CancelFunc
	jobs sync.WaitGroup

	mu        sync.Mutex // guards the rest
	sandboxes map[string]*sandbox
	deaths    chan struct{} // signalled when dead grows
	dead      []death       // not yet reported
}

// death is one that Watch has to report.
type death struct {
	id   broker.SandboxID
	fate broker.Fate
}

// New checks the options, removes what a killed broker left in the state folder,
// and begins to start warm sandboxes. A pool that cannot work is not an error:
// its takes fail with the reason. Close ends every sandbox.
func New(ctx context.Context, o Options) (*Provider, error) {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	st, err := openState(o.StateDir, o.Instance)
	if err != nil {
		return nil, err
	}
	rt, err := newRuntime(o, st)
	if err != nil {
		return nil, errors.Join(err, st.remove())
	}
	if err := st.sweep(rt, o.Log); err != nil {
		return nil, errors.Join(err, st.close())
	}
	p := &Provider{
		log: o.Log, state: st, runtime: rt, spawner: newSpawner(), pools: map[string]*pool{},
		sandboxes: map[string]*sandbox{}, deaths: make(chan struct{}, 1),
	}
	p.life, p.end = context.WithCancel(context.WithoutCancel(ctx))
	for _, c := range o.Pools {
		pl, err := p.newPool(ctx, c)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("local: pool %q: %w", c.Name, err), p.Close(ctx))
		}
		p.pools[c.Name] = pl
	}
	for _, pl := range p.pools {
		pl.fill()
	}
	return p, nil
}

// Isolation names what isolates the sandboxes; "none" is said aloud.
func (p *Provider) Isolation() string { return p.runtime.isolation() }

// Close ends every sandbox and removes all that the provider made. It waits until
// that is done or ctx ends.
func (p *Provider) Close(ctx context.Context) error {
	p.end()
	p.mu.Lock()
	all := make([]*sandbox, 0, len(p.sandboxes))
	for _, s := range p.sandboxes {
		all = append(all, s)
	}
	p.mu.Unlock()
	for _, s := range all {
		s.kill()
	}
	done := make(chan struct{})
	go func() {
		p.jobs.Wait()
		close(done)
	}()
	select {
	case <-done:
	case <-ctx.Done():
		return fmt.Errorf("local: ending the sandboxes: %w", ctx.Err())
	}
	p.spawner.close()
	return errors.Join(p.runtime.close(), p.state.remove())
}

// Take implements broker.Provider: a warm sandbox if there is one, else a new one.
func (p *Provider) Take(ctx context.Context, req broker.TakeRequest) (broker.Sandbox, error) {
	pl := p.pools[req.WarmPool]
	if pl == nil {
		return nil, wire.NotReady(wire.ReasonConfiguration, "there is no local pool %q", req.WarmPool)
	}
	if pl.problem != nil {
		return nil, pl.problem
	}
	s := pl.pop()
	if s == nil {
		var err error
		if s, err = pl.start(ctx); err != nil {
			return nil, err
		}
	}
	if !s.take(req) {
		return nil, fmt.Errorf("local: sandbox %s died before it was used", s.id.Name)
	}
	pl.fill()
	return s, nil
}

// Warm implements broker.WarmCounter.
func (p *Provider) Warm(warmPool string) int {
	pl := p.pools[warmPool]
	if pl == nil {
		return 0
	}
	return pl.ready()
}

// List implements broker.Provider. A broker's sandboxes end with it, so there is
// never one of an earlier broker.
func (p *Provider) List(context.Context) ([]broker.Sandbox, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	var out []broker.Sandbox
	for _, s := range p.sandboxes {
		if s.isTaken() {
			out = append(out, s)
		}
	}
	return out, nil
}

// Watch implements broker.Provider.
func (p *Provider) Watch(ctx context.Context, died func(broker.SandboxID, broker.Fate)) error {
	for {
		p.mu.Lock()
		dead := p.dead
		p.dead = nil
		p.mu.Unlock()
		for _, d := range dead {
			died(d.id, d.fate)
		}
		select {
		case <-p.deaths:
		case <-ctx.Done():
			return nil
		}
	}
}

// report has Watch tell of a death.
func (p *Provider) report(id broker.SandboxID, f broker.Fate) {
	p.mu.Lock()
	p.dead = append(p.dead, death{id, f})
	p.mu.Unlock()
	select {
	case p.deaths <- struct{}{}:
	default: // it has yet to look
	}
}

func (p *Provider) add(s *sandbox) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.sandboxes[s.id.Name] = s
}

func (p *Provider) remove(s *sandbox) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.sandboxes, s.id.Name)
}

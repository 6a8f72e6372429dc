package processtest

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/sandbox-broker/sandbox-broker/broker"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// Replica is the provider as one of several replicas has it. It implements
// broker.Shared and broker.Roster. Which replicas are silent, a test says.
type Replica struct {
	*Provider

	mu      sync.Mutex // guards the rest
	name    string
	moved   func(broker.SandboxID)
	silent  bool // the others think so
	unaware bool // and it does not know
	gone    bool
	told    []broker.Ended
	hold    chan struct{} // closed when Tell may go on; nil: at once
	refuse  int           // calls of Tell
}

// Replica makes the view of one more replica.
func (p *Provider) Replica() *Replica {
	r := &Replica{Provider: p}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.replicas = append(p.replicas, r)
	return r
}

// Silence makes the others think that the replica is gone. An unaware one goes on as
// if it were not: its clock stood still.
func (r *Replica) Silence(unaware bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.silent, r.unaware = true, unaware
}

// Join implements broker.Shared.
func (r *Replica) Join(_, _ context.Context, name string, moved func(broker.SandboxID)) (broker.Roster, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.name, r.moved = name, moved
	return r, nil
}

// named finds a replica.
func (p *Provider) named(name string) *Replica {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, r := range p.replicas {
		r.mu.Lock()
		found := r.name == name
		r.mu.Unlock()
		if found {
			return r
		}
	}
	return nil
}

// Silent implements broker.Roster.
func (r *Replica) Silent(name string) bool {
	other := r.named(name)
	if other == nil {
		return true
	}
	other.mu.Lock()
	defer other.mu.Unlock()
	return other.silent || other.gone
}

// Current implements broker.Roster.
func (r *Replica) Current() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.silent || r.unaware
}

// Replicas implements broker.Roster: each has the whole stock, so that there is
// something to take over.
func (r *Replica) Replicas() int { return 1 }

// Leave implements broker.Roster.
func (r *Replica) Leave(context.Context) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.gone = true
	return nil
}

// HoldTells keeps Tell waiting until release is called.
func (r *Replica) HoldTells() (release func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	hold := make(chan struct{})
	r.hold = hold
	return sync.OnceFunc(func() { close(hold) })
}

// RefuseTells fails the next n calls of Tell.
func (r *Replica) RefuseTells(n int) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.refuse = n
}

// HasTold reports whether the others were told of an ending.
func (r *Replica) HasTold() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.told) > 0
}

var errRefused = errors.New("processtest: Tell is refused")

// Tell implements broker.Roster.
func (r *Replica) Tell(ctx context.Context, all []broker.Ended) error {
	r.mu.Lock()
	hold := r.hold
	r.mu.Unlock()
	if hold != nil {
		select {
		case <-hold:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.refuse > 0 {
		r.refuse--
		return errRefused
	}
	r.told = all
	return nil
}

// Told implements broker.Roster.
func (r *Replica) Told(lease string) []broker.Ended {
	r.Provider.mu.Lock()
	others := slices.Clone(r.replicas)
	r.Provider.mu.Unlock()
	var all []broker.Ended
	for _, o := range others {
		if o == r {
			continue
		}
		o.mu.Lock()
		for _, n := range o.told {
			if n.Lease == lease {
				all = append(all, n)
			}
		}
		o.mu.Unlock()
	}
	return all
}

// Foreign implements broker.Shared.
func (r *Replica) Foreign(pool string) int {
	r.mu.Lock()
	name := r.name
	r.mu.Unlock()
	r.Provider.mu.Lock()
	defer r.Provider.mu.Unlock()
	n := 0
	for _, s := range r.sandboxes {
		if s.pool == pool && s.Owner() != name {
			n++
		}
	}
	return n
}

// Find implements broker.Shared.
func (r *Replica) Find(_ context.Context, name string) (broker.Sandbox, error) {
	r.Provider.mu.Lock()
	defer r.Provider.mu.Unlock()
	if s := r.sandboxes[name]; s != nil {
		return s, nil
	}
	return nil, wire.Errorf(wire.CodeLeaseExpired, "the lease has ended")
}

// TakeOver implements broker.Shared. Of two at once one wins, since the owner that
// the winner replaces is told of it.
func (r *Replica) TakeOver(_ context.Context, sb broker.Sandbox, name string) error {
	s := sb.(*Sandbox)
	s.mu.Lock()
	from := s.owner
	s.owner = name
	s.mu.Unlock()
	if other := r.named(from); other != nil && from != name {
		other.mu.Lock()
		moved, unaware := other.moved, other.unaware
		other.mu.Unlock()
		if !unaware {
			moved(s.id)
		}
	}
	return nil
}

// EndOwned implements broker.Shared.
func (r *Replica) EndOwned(ctx context.Context, sb broker.Sandbox, name, lease string) error {
	s := sb.(*Sandbox)
	same := lease != "" && s.Recorded() != nil && s.Recorded().Lease == lease
	if s.Owner() != name && !same {
		return wire.Errorf(wire.CodeConflict, "another replica has taken sandbox %s over", s.id.Name)
	}
	return sb.End(ctx)
}

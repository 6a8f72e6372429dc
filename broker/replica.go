package broker

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

const (
	// tendEvery is how often a replica looks for what silent ones left.
	tendEvery = 2 * time.Second
	// recordPatience bounds the wait for the record of a lease whose handle a client has
	// already, and recordLook is how often it is looked for.
	recordPatience = 3 * time.Second
	recordLook     = 100 * time.Millisecond
)

// alone is the roster of a broker that shares its provider with nobody: what others
// own is left over from brokers that are gone.
type alone struct{}

func (alone) Silent(string) bool { return true }
func (alone) Current() bool      { return true }
func (alone) Replicas() int      { return 1 }

// Leave and Tell have nobody to tell, and Told nobody to hear of.
func (alone) Leave(context.Context) error         { return nil }
func (alone) Tell(context.Context, []Ended) error { return nil }
func (alone) Told(string) []Ended                 { return nil }

// join makes the broker one of the replicas that share its provider, and takes up
// what brokers left that are gone.
func (b *Broker) join(ctx context.Context) error {
	b.roster = alone{}
	if b.shared != nil {
		var err error
		if b.roster, err = b.shared.Join(ctx, context.WithoutCancel(ctx), b.replica, b.moved); err != nil {
			return fmt.Errorf("broker: joining the other replicas: %w", err)
		}
	}
	for _, p := range b.pools {
		p.roster = b.roster
		if b.shared != nil {
			p.foreign = b.shared.Foreign
			p.tell = b.tell
			p.endOwned = func(ctx context.Context, sb Sandbox, lease string) error {
				return b.shared.EndOwned(ctx, sb, b.replica, lease)
			}
		}
	}
	err := b.tend(ctx)
	if err != nil && b.shared != nil && ctx.Err() == nil {
		b.log.Warn("what other replicas left could not be looked for yet", "error", err)
		return nil // tendAlways does it
	}
	return err
}

// tendAlways takes over from silent replicas until the broker ends.
func (b *Broker) tendAlways() {
	defer close(b.tending)
	t := time.NewTicker(tendEvery)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-b.life.Done():
			return
		}
		if err := b.tend(b.life); err != nil && b.life.Err() == nil {
			b.log.Warn("looking for what other replicas left failed", "error", err)
		}
		b.tellAgain()
		for _, p := range b.pools {
			p.start() // others may have made room
		}
	}
}

// tend takes over every sandbox whose owner is silent.
func (b *Broker) tend(ctx context.Context) error {
	found, err := b.provider.List(ctx)
	if err != nil {
		return fmt.Errorf("broker: listing the sandboxes: %w", err)
	}
	for _, sb := range found {
		if o := sb.Info().Owner; o != b.replica && b.roster.Silent(o) {
			b.takeOver(ctx, sb)
		}
	}
	return nil
}

// takeOver makes this replica the owner of a sandbox. A lease goes on; a sandbox that
// nobody holds a handle to joins the stock if it is blank, else it ends.
func (b *Broker) takeOver(ctx context.Context, sb Sandbox) {
	info := sb.Info()
	p := b.pools[info.Pool]
	if p == nil {
		b.log.Warn("a sandbox of an unknown pool is left to its own end", "sandbox", sb.ID().Name, "pool", info.Pool)
		return
	}
	if !b.own(ctx, sb) {
		return
	}
	r := sb.Info().Record // as of now: what List told may be older
	switch {
	case r == nil:
		p.adopt()
		p.jobs.Go(func() { p.salvage(sb) })
	case time.Now().After(r.Until):
		p.adopt()
		p.release(sb)
	default:
		l := b.enlist(p, sb, true)
		l.attach()
		l.detach() // starts a run's grace: its client has to come back in time
	}
}

// own moves the ownership of a sandbox to this replica, if nobody else did.
func (b *Broker) own(ctx context.Context, sb Sandbox) bool {
	if b.shared == nil {
		return true
	}
	err := b.shared.TakeOver(ctx, sb, b.replica)
	if err != nil && !errors.Is(err, wire.ErrConflict) {
		b.log.Warn("a sandbox of a silent replica could not be taken over", "sandbox", sb.ID().Name, "error", err)
	}
	return err == nil
}

// enlist finds the lease on a recorded sandbox, or makes it. Without owned, another
// replica counts it and guards its end.
func (b *Broker) enlist(p *pool, sb Sandbox, owned bool) *lease {
	r := sb.Info().Record
	name := sb.ID().Name
	b.mu.Lock()
	l := b.leases[name]
	if l == nil {
		l = newGuest(p, sb, *r)
		if r.Bound {
			l.mark()
		}
		b.leases[name] = l
		defer l.onceEnded(func() { b.forget(name, l) })
	}
	b.mu.Unlock()
	if owned && l.adopt() {
		p.adopt()
	}
	return l
}

// guest finds a lease that another replica made. A run moves here with its client,
// whose absence would otherwise end it there.
func (b *Broker) guest(ctx context.Context, h handle) (*lease, error) {
	expired := wire.Errorf(wire.CodeLeaseExpired, "the lease has ended")
	if b.shared == nil {
		return nil, expired
	}
	sb, err := b.recorded(ctx, h.claim)
	if err != nil {
		return nil, notWire(err, "looking for the lease")
	}
	info := sb.Info()
	p := b.pools[info.Pool]
	r := info.Record
	if r == nil && info.Owner != b.replica && !b.roster.Silent(info.Owner) {
		// Its channel may be lost: it is written down when its runner has been told.
		return nil, wire.Errorf(wire.CodeUnavailable, "the broker that has the lease has not shared it yet; try again")
	}
	if p == nil || r == nil || r.Tenant != h.tenant || r.Lease != h.lease || time.Now().After(r.Until) {
		return nil, expired
	}
	if r.Kind != KindRun || b.own(ctx, sb) {
		return b.enlist(p, sb, r.Kind == KindRun), nil
	}
	return nil, wire.Errorf(wire.CodeUnavailable, "the run could not be taken over from the replica that has it, which would end it for want of a client; try again")
}

// recorded finds a sandbox with the record of its lease. A client has its handle before
// the record is written, and may come here with it at once: so that is waited for.
func (b *Broker) recorded(ctx context.Context, name string) (Sandbox, error) {
	late := time.NewTimer(recordPatience)
	defer late.Stop()
	look := time.NewTicker(recordLook)
	defer look.Stop()
	for {
		sb, err := b.shared.Find(ctx, name)
		if err != nil || sb.Info().Record != nil {
			return sb, err
		}
		select {
		case <-look.C:
		case <-late.C:
			return sb, nil
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		}
	}
}

// moved forgets a sandbox that another replica took over.
func (b *Broker) moved(id SandboxID) {
	b.mu.Lock()
	l := b.leases[id.Name]
	b.mu.Unlock()
	if l != nil && l.sb.ID() == id {
		l.leave()
		return
	}
	for _, p := range b.pools {
		p.lose(id)
	}
}

// salvage puts a sandbox that no lease holds into the stock if nothing ran in it. It
// is counted as leased.
func (p *pool) salvage(sb Sandbox) {
	ctx, cancel := context.WithTimeout(p.life, dialTimeout)
	defer cancel()
	if !p.wantsMore() {
		p.release(sb)
		return
	}
	ch, err := openChannel(ctx, sb, p.secret, "")
	if err != nil {
		p.log.Info("a sandbox of a silent replica is ended", "sandbox", sb.ID().Name, "error", err)
		p.release(sb)
		return
	}
	st, err := ch.Status(ctx)
	if err != nil || st.Bound {
		ch.Close()
		p.release(sb)
		return
	}
	p.log.Info("a sandbox of a silent replica joins the stock", "sandbox", sb.ID().Name)
	p.giveBack(&member{sb: sb, ch: ch, languages: st.Languages, contested: true})
}

// wantsMore reports whether a sandbox would find a place.
func (p *pool) wantsMore() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.closed && (p.waiters.Len() > 0 || len(p.stock) < p.share())
}

// share is this replica's part of the stock.
func (p *pool) share() int {
	n := max(1, p.roster.Replicas())
	return (p.cfg.Stock + n - 1) / n
}

package broker

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sort"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.opentelemetry.io/otel"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

var tracer = otel.Tracer("github.com/sandbox-broker/sandbox-broker/broker")

// ErrDetached is the cause with which a request's context ends when its client
// went away, or the broker is handing over: what was started goes on.
var ErrDetached = errors.New("the client is gone")

// Options configure a Broker.
type Options struct {
	Pools    []PoolConfig
	Provider Provider
	// Secret is the key all replicas share, at least 32 bytes. Handles and the
	// keys of channels follow from it.
	Secret  []byte
	Metrics prometheus.Registerer // nil: not exported
	Log     *slog.Logger          // nil: discarded; never gets code, output or tokens
	// StartLogDelay is how long a program runs until the log says so; zero:
	// DefaultStartLogDelay.
	StartLogDelay time.Duration
}

// MinSecret is the least length of Options.Secret, in bytes.
const MinSecret = 32

// Broker runs programs in leased sandboxes. Its methods are safe for concurrent
// use.
type Broker struct {
	provider Provider
	shared   Shared // the provider, if replicas share it; nil: they do not
	replica  string
	roster   Roster
	secret   secret
	pools    map[string]*pool
	metrics  *metrics
	log      *slog.Logger

	startLogDelay time.Duration

	life context.Context //nolint:containedctx // the broker's own life, which no call has
	kill context.CancelFunc

	requests sync.WaitGroup // requests in progress
	watching chan struct{}  // closed when Watch has returned
	tending  chan struct{}  // closed when tendAlways has

	ended farewells

	waiting budget // of programs that have not started

	mu     sync.Mutex // guards the rest
	closed bool
	leases map[string]*lease // by the claim's name
}

// New checks the options, takes up what an earlier broker of this instance left,
// and starts to fill the stocks. Close ends it.
func New(ctx context.Context, o Options) (*Broker, error) {
	if len(o.Secret) < MinSecret {
		return nil, fmt.Errorf("broker: the handle key has %d bytes; at least %d are needed", len(o.Secret), MinSecret)
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Metrics == nil {
		o.Metrics = prometheus.NewRegistry()
	}
	if o.StartLogDelay == 0 {
		o.StartLogDelay = DefaultStartLogDelay
	}
	b := &Broker{
		provider: o.Provider, secret: secret(o.Secret), pools: map[string]*pool{}, metrics: newMetrics(o.Metrics),
		log: o.Log, leases: map[string]*lease{}, watching: make(chan struct{}), tending: make(chan struct{}), replica: randomID(),
		startLogDelay: o.StartLogDelay,
	}
	b.shared, _ = o.Provider.(Shared)
	b.life, b.kill = context.WithCancel(context.WithoutCancel(ctx))
	for i, c := range o.Pools {
		verify := len(c.Languages) > 0 // what an admin wrote down is held against the sandboxes
		c = c.WithDefaults()
		if err := c.Check(); err != nil {
			return nil, fmt.Errorf("broker: pools[%d] %q: %w", i, c.Name, err)
		}
		if b.pools[c.Name] != nil {
			return nil, fmt.Errorf("broker: pools[%d]: the name %q is taken", i, c.Name)
		}
		b.pools[c.Name] = newPool(b.life, c, verify, o.Provider, b.replica, b.secret, b.metrics, o.Log)
	}
	if err := b.join(ctx); err != nil {
		b.kill()
		return nil, err
	}
	go b.watch()
	if b.shared != nil {
		go b.tendAlways()
	} else {
		close(b.tending)
	}
	for _, p := range b.pools {
		p.start()
	}
	return b, nil
}

// watchPause is the pause before a watch that failed is started again.
const watchPause = time.Second

// watch passes the provider's reports of deaths on until the broker ends.
func (b *Broker) watch() {
	defer close(b.watching)
	for b.life.Err() == nil {
		if err := b.provider.Watch(b.life, b.died); err != nil && b.life.Err() == nil {
			b.log.Error("watching the sandboxes failed", "error", err)
		}
		select {
		case <-b.life.Done():
		case <-time.After(watchPause):
		}
	}
}

// died ends the lease on a dead sandbox, or drops it from a stock.
func (b *Broker) died(id SandboxID, f Fate) {
	b.mu.Lock()
	l := b.leases[id.Name]
	b.mu.Unlock()
	if l != nil && l.sb.ID() == id {
		if told := b.roster.Told(l.id); len(told) > 0 {
			f = told[0].Fate // that the claim is gone says less
		}
		b.log.Info("sandbox died", "sandbox", id.Name, "reason", f.Reason, "cause", f.Cause, "message", f.Message)
		l.end(f)
		return
	}
	for _, p := range b.pools {
		p.died(id)
	}
}

// register makes a lease findable until it ends.
func (b *Broker) register(l *lease) {
	name := l.sb.ID().Name
	b.mu.Lock()
	b.leases[name] = l
	b.mu.Unlock()
	l.onceEnded(func() { b.forget(name, l) })
}

// forget makes a lease that has ended no longer findable; what is to be told of its end
// is remembered first.
func (b *Broker) forget(name string, l *lease) {
	b.remember(l)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.leases[name] == l {
		delete(b.leases, name)
	}
}

// find resolves a handle of tenant to its living lease, whichever replica made it.
func (b *Broker) find(ctx context.Context, text, tenant string) (*lease, handle, error) {
	h, err := b.secret.open(text, tenant)
	if err != nil {
		return nil, h, err
	}
	b.mu.Lock()
	l := b.leases[h.claim]
	b.mu.Unlock()
	if l == nil && len(b.knownEndings(h.lease)) > 0 {
		return nil, h, wire.Errorf(wire.CodeLeaseExpired, "the lease has ended") // its claim may still be there
	}
	if l == nil {
		if l, err = b.guest(ctx, h); err != nil {
			return nil, h, err
		}
	}
	if l.tenant != tenant || l.id != h.lease {
		return nil, h, wire.Errorf(wire.CodeLeaseExpired, "the lease has ended")
	}
	return l, h, nil
}

// pool finds a pool that tenant may use. Where there is only one, it need not be
// named.
func (b *Broker) pool(name, tenant string) (*pool, error) {
	if name == "" {
		names := b.poolNames(tenant)
		if len(names) != 1 {
			return nil, wire.Invalid("pool", 0, "the request names no pool; there are %v", names)
		}
		name = names[0]
	}
	p, ok := b.pools[name]
	if !ok {
		return nil, wire.Invalid("pool", 0, "there is no pool %q; there are %v", name, b.poolNames(tenant))
	}
	if !p.cfg.allows(tenant) {
		return nil, wire.Errorf(wire.CodeForbidden, "the tenant may not use the pool %q", name)
	}
	return p, nil
}

func (c PoolConfig) allows(tenant string) bool {
	return len(c.Tenants) == 0 || slices.Contains(c.Tenants, tenant)
}

func (b *Broker) poolNames(tenant string) []string {
	var names []string
	for n, p := range b.pools {
		if p.cfg.allows(tenant) {
			names = append(names, n)
		}
	}
	sort.Strings(names)
	return names
}

// enter counts a request; false means that the broker is closing.
func (b *Broker) enter() bool {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return false
	}
	b.requests.Add(1)
	return true
}

// Close hands over: requests in progress should have been detached by their
// edge; it waits for them until ctx ends. Leases and what runs in them stay, for
// the next broker; the stock is ended.
func (b *Broker) Close(ctx context.Context) error {
	b.mu.Lock()
	b.closed = true
	b.mu.Unlock()
	drained := make(chan struct{})
	go func() {
		b.requests.Wait()
		close(drained)
	}()
	var err error
	select {
	case <-drained:
	case <-ctx.Done():
		err = fmt.Errorf("broker: requests were still in progress: %w", ctx.Err())
	}
	b.kill()
	b.mu.Lock()
	leases := make([]*lease, 0, len(b.leases))
	for _, l := range b.leases {
		leases = append(leases, l)
	}
	b.mu.Unlock()
	for _, l := range leases {
		l.abandon()
	}
	for _, p := range b.pools {
		p.close()
	}
	<-b.watching
	<-b.tending
	// Only now: until every lease is recorded the others must let them be.
	leaving, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownPatience)
	defer cancel()
	return errors.Join(err, b.roster.Leave(leaving))
}

// Pools lists the pools that tenant may use, by name.
func (b *Broker) Pools(tenant string) []wire.Pool {
	out := []wire.Pool{}
	for _, name := range b.poolNames(tenant) {
		out = append(out, b.pools[name].describe())
	}
	return out
}

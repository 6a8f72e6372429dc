package agentsandbox

import (
	"context"
	"fmt"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	extensionsv1beta1 "sigs.k8s.io/agent-sandbox/extensions/api/v1beta1"

	"github.com/sandbox-broker/sandbox-broker/broker"
)

const (
	// announceEvery is how often a replica renews its coordination Lease.
	announceEvery = 5 * time.Second
	// ownerGrace is how long a replica may be silent before others take over what it
	// owns.
	ownerGrace = 15 * time.Second
	// announceTimeout bounds one renewal.
	announceTimeout = 4 * time.Second
	// keepSilent is how long the coordination Lease of a silent replica is kept: until
	// every other one has taken note of it.
	keepSilent = 4 * ownerGrace
)

// roster keeps one coordination.k8s.io Lease for each replica. That one has come to
// an end is told by this replica's own clock, from when it last saw the Lease change:
// clocks of different machines are never compared.
type roster struct {
	p       *Provider
	replica string
	stop    context.CancelFunc
	stopped chan struct{}

	mu      sync.Mutex // guards the rest
	renewed time.Time  // when this replica's own Lease last was
	seen    map[string]sighting
	// asked is when somebody first wanted to know about a replica that was never seen:
	// the watch of Leases may be behind that of claims.
	asked map[string]time.Time
	left  map[string]bool // replicas that were seen to go
	told  []told          // what they told of endings, the oldest first
}

// sighting is what a replica's Lease said, and when that was new.
type sighting struct {
	version string
	at      time.Time
	told    string // of endings
}

// Join implements broker.Shared.
func (p *Provider) Join(ctx, life context.Context, replica string, moved func(broker.SandboxID)) (broker.Roster, error) {
	p.mu.Lock()
	p.replica, p.moved = replica, moved
	p.mu.Unlock()
	life, stop := context.WithCancel(life)
	r := &roster{p: p, replica: replica, stop: stop, stopped: make(chan struct{}), seen: map[string]sighting{}, asked: map[string]time.Time{}, left: map[string]bool{}}
	leases, err := p.cache.GetInformer(ctx, &coordinationv1.Lease{})
	if err == nil {
		_, err = leases.AddEventHandler(handler(
			func(_, l *coordinationv1.Lease) { r.saw(l) },
			func(l *coordinationv1.Lease) { r.gone(l) },
		))
	}
	if err == nil {
		err = whileOutOfReach(ctx, p.log, func() error { return r.announce(ctx) })
	}
	if err != nil {
		stop()
		return nil, fmt.Errorf("agentsandbox: announcing this replica in namespace %s: %w", p.opts.Namespace, err)
	}
	go r.run(life)
	return r, nil
}

func (r *roster) lease() *coordinationv1.Lease {
	now := metav1.NowMicro()
	seconds := int32(ownerGrace / time.Second)
	return &coordinationv1.Lease{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: r.p.opts.Namespace, Name: managedBy + "-" + r.p.opts.Instance + "-" + r.replica,
			Labels: map[string]string{labelManagedBy: managedBy, labelInstance: r.p.opts.Instance, labelOwner: r.replica},
		},
		Spec: coordinationv1.LeaseSpec{HolderIdentity: &r.replica, LeaseDurationSeconds: &seconds, RenewTime: &now},
	}
}

// announce renews the Lease, or makes it.
func (r *roster) announce(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, announceTimeout)
	defer cancel()
	began := time.Now()
	l := r.lease()
	body := client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"spec":{"renewTime":%q}}`, l.Spec.RenewTime.UTC().Format(metav1.RFC3339Micro)))
	err := r.p.client.Patch(ctx, l, body)
	if apierrors.IsNotFound(err) {
		err = r.p.client.Create(ctx, r.lease())
	}
	if err != nil {
		return err
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.renewed = began
	return nil
}

// run announces this replica again and again, and forgets those that are silent for
// long.
func (r *roster) run(life context.Context) {
	defer close(r.stopped)
	t := time.NewTicker(announceEvery)
	defer t.Stop()
	for {
		select {
		case <-t.C:
		case <-life.Done():
			return
		}
		if err := r.announce(life); err != nil && life.Err() == nil {
			r.p.log.Warn("this replica could not be announced", "error", err)
		}
		r.sweep(life)
	}
}

// sweep deletes the Leases of replicas that are silent for long.
func (r *roster) sweep(ctx context.Context) {
	r.mu.Lock()
	var old []string
	for name, s := range r.seen {
		if name != r.replica && time.Since(s.at) > keepSilent {
			old = append(old, name)
		}
	}
	r.mu.Unlock()
	for _, name := range old {
		l := (&roster{p: r.p, replica: name}).lease()
		if err := r.p.client.Delete(ctx, l); err != nil && !apierrors.IsNotFound(err) && ctx.Err() == nil {
			r.p.log.Warn("the Lease of a replica that has gone could not be deleted", "replica", name, "error", err)
		}
	}
}

func (r *roster) saw(l *coordinationv1.Lease) {
	name := l.Labels[labelOwner]
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.left, name)
	if r.seen[name].version != l.ResourceVersion {
		before := r.seen[name].told
		r.seen[name] = sighting{version: l.ResourceVersion, at: time.Now(), told: l.Annotations[annotationEnded]}
		r.hear(l, before)
	}
}

func (r *roster) gone(l *coordinationv1.Lease) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.seen, l.Labels[labelOwner])
	r.left[l.Labels[labelOwner]] = true
}

// Silent implements broker.Roster.
func (r *roster) Silent(replica string) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if s, ok := r.seen[replica]; ok {
		return time.Since(s.at) > ownerGrace
	}
	if _, ok := r.asked[replica]; !ok {
		r.asked[replica] = time.Now()
	}
	return r.left[replica] || time.Since(r.asked[replica]) > ownerGrace
}

// Current implements broker.Roster. It leaves room for the way of an answer to who
// asked for a sandbox.
func (r *roster) Current() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return time.Since(r.renewed) < ownerGrace-announceEvery
}

// Replicas implements broker.Roster.
func (r *roster) Replicas() int {
	r.mu.Lock()
	defer r.mu.Unlock()
	n := 1
	for name, s := range r.seen {
		if name != r.replica && time.Since(s.at) <= ownerGrace {
			n++
		}
	}
	return n
}

// Leave implements broker.Roster.
func (r *roster) Leave(ctx context.Context) error {
	r.stop()
	<-r.stopped
	if err := r.p.client.Delete(ctx, r.lease()); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("agentsandbox: leaving the other replicas: %w", err)
	}
	return nil
}

// Foreign implements broker.Shared.
func (p *Provider) Foreign(pool string) int {
	var claims extensionsv1beta1.SandboxClaimList
	ctx, cancel := context.WithTimeout(context.Background(), time.Second) // a cache answers at once
	defer cancel()
	if err := p.client.List(ctx, &claims, client.InNamespace(p.opts.Namespace), client.MatchingFields{indexPool: pool}, client.UnsafeDisableDeepCopy); err != nil {
		p.log.Warn("the sandboxes of other replicas could not be counted", "error", err)
		return 0
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for i := range claims.Items {
		c := &claims.Items[i]
		if c.DeletionTimestamp.IsZero() && c.Labels[labelOwner] != p.replica {
			n++
		}
	}
	return n
}

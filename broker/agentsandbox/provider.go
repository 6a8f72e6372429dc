// Package agentsandbox provides sandboxes from agent-sandbox's warm pools on
// Kubernetes.
//
// A take creates a SandboxClaim and waits, on one watch, until agent-sandbox has
// adopted a warm Sandbox for it and its pod is ready. What identifies a sandbox
// is the claim's UID with the pod's: agent-sandbox replaces a vanished pod by a
// blank one under the same name and calls the claim Ready again, so names, and
// that condition, prove nothing later. Death is read from the pod.
//
// Every claim has an end (shutdownTime, with policy Delete) from its creation, so
// that nothing outlives all brokers. The channel to the runner is one pods/exec
// WebSocket.
package agentsandbox

import (
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"sync"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/selection"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	extensionsv1beta1 "sigs.k8s.io/agent-sandbox/extensions/api/v1beta1"

	"github.com/sandbox-broker/sandbox-broker/broker"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// Names on the claims.
const (
	labelManagedBy   = "app.kubernetes.io/managed-by"
	managedBy        = "sandbox-broker"
	labelInstance    = "sandbox-broker.dev/instance"
	labelPool        = "sandbox-broker.dev/pool"
	labelOwner       = "sandbox-broker.dev/owner" // the replica that counts it
	labelTenant      = "sandbox-broker.dev/tenant-hash"
	annotationRecord = "sandbox-broker.dev/record"
)

const (
	// maxDials bounds the execs being set up at once: the API server's own
	// fairness does not cover exec.
	maxDials = 16
	// indexClaim finds pods by the claim they were adopted for.
	indexClaim = "claim-uid"
	// indexPool finds claims by their pool.
	indexPool = "pool"
)

// Options configure a Provider.
type Options struct {
	Config    *rest.Config
	Namespace string // where the warm pools are; nothing else should be there
	// Instance tells the claims of this broker, and of its replicas, from those
	// of another one in the same namespace.
	Instance  string
	Container string       // with the runner; empty: "sandbox"
	Runner    string       // the runner's path in it; empty: DefaultRunner
	Log       *slog.Logger // nil: discarded
}

// DefaultRunner is where the templates of deploy/ put the runner.
const DefaultRunner = "/opt/sandbox-runner/sandbox-runner"

// Provider implements broker.Shared and broker.WarmCounter.
type Provider struct {
	opts   Options
	client client.Client // reads from cache
	live   client.Reader // reads from the API server
	cache  cache.Cache
	dialer *dialer
	log    *slog.Logger

	mu      sync.Mutex // guards the rest
	waiting map[types.UID]chan struct{}
	known   map[types.UID]broker.SandboxID // by the claim's UID
	died    func(broker.SandboxID, broker.Fate)
	moved   func(broker.SandboxID)
	replica string // this one, once it has joined
}

// New connects to the cluster and waits until its watches have synchronised, at
// most until ctx ends; they then live until life ends.
func New(ctx, life context.Context, o Options) (*Provider, error) {
	if o.Container == "" {
		o.Container = "sandbox"
	}
	if o.Runner == "" {
		o.Runner = DefaultRunner
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	p := &Provider{opts: o, log: o.Log, waiting: map[types.UID]chan struct{}{}, known: map[types.UID]broker.SandboxID{}}
	if err := whileOutOfReach(ctx, p.log, func() error {
		if err := p.connect(); err != nil {
			return err
		}
		return p.observe(ctx)
	}); err != nil {
		return nil, err
	}
	go func() {
		if err := p.cache.Start(life); err != nil {
			p.log.Error("the watches ended", "error", err)
		}
	}()
	if !p.cache.WaitForCacheSync(ctx) {
		return nil, fmt.Errorf("agentsandbox: the watches in namespace %s did not start: are agent-sandbox's CRDs installed, and may this account list claims, pods, warm pools and coordination Leases there? %w", o.Namespace, ctx.Err())
	}
	return p, nil
}

// connect builds the clients and the caches of what this broker needs to see.
func (p *Provider) connect() error {
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{corev1.AddToScheme, coordinationv1.AddToScheme, extensionsv1beta1.AddToScheme} {
		if err := add(scheme); err != nil {
			return fmt.Errorf("agentsandbox: registering types: %w", err)
		}
	}
	adopted, err := labels.NewRequirement(extensionsv1beta1.SandboxIDLabel, selection.Exists, nil)
	if err != nil {
		return fmt.Errorf("agentsandbox: selecting pods: %w", err)
	}
	p.cache, err = cache.New(p.opts.Config, cache.Options{
		Scheme:            scheme,
		DefaultNamespaces: map[string]cache.Config{p.opts.Namespace: {}},
		DefaultTransform:  cache.TransformStripManagedFields(),
		ByObject: map[client.Object]cache.ByObject{
			&extensionsv1beta1.SandboxClaim{}:    {Label: p.ours()},
			&corev1.Pod{}:                        {Label: labels.NewSelector().Add(*adopted)},
			&extensionsv1beta1.SandboxWarmPool{}: {},
			&coordinationv1.Lease{}:              {Label: p.ours()},
		},
	})
	if err != nil {
		return fmt.Errorf("agentsandbox: preparing the watches: %w", err)
	}
	live, err := client.New(p.opts.Config, client.Options{Scheme: scheme})
	if err != nil {
		return fmt.Errorf("agentsandbox: preparing the client: %w", err)
	}
	p.live = live
	p.client, err = client.New(p.opts.Config, client.Options{Scheme: scheme, Cache: &client.CacheOptions{Reader: p.cache}})
	if err != nil {
		return fmt.Errorf("agentsandbox: preparing the client: %w", err)
	}
	p.dialer, err = newDialer(p.opts)
	return err
}

// ours selects the claims of this instance.
func (p *Provider) ours() labels.Selector {
	return labels.SelectorFromSet(labels.Set{labelManagedBy: managedBy, labelInstance: p.opts.Instance})
}

// Warm implements broker.WarmCounter from the pool's status.
func (p *Provider) Warm(warmPool string) int {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second) // a cache answers at once
	defer cancel()
	var wp extensionsv1beta1.SandboxWarmPool
	if err := p.client.Get(ctx, client.ObjectKey{Namespace: p.opts.Namespace, Name: warmPool}, &wp); err != nil {
		return 0
	}
	return int(wp.Status.ReadyReplicas)
}

// List implements broker.Provider.
func (p *Provider) List(ctx context.Context) ([]broker.Sandbox, error) {
	var claims extensionsv1beta1.SandboxClaimList
	if err := p.client.List(ctx, &claims, client.InNamespace(p.opts.Namespace)); err != nil {
		return nil, fmt.Errorf("agentsandbox: listing claims: %w", err)
	}
	var out []broker.Sandbox
	for i := range claims.Items {
		c := &claims.Items[i]
		if !c.DeletionTimestamp.IsZero() {
			continue
		}
		pod, err := p.surePodOf(ctx, c)
		if err != nil {
			return nil, err
		}
		out = append(out, p.describe(c, pod))
	}
	return out, nil
}

// Find implements broker.Shared.
func (p *Provider) Find(ctx context.Context, name string) (broker.Sandbox, error) {
	var c extensionsv1beta1.SandboxClaim
	err := p.live.Get(ctx, client.ObjectKey{Namespace: p.opts.Namespace, Name: name}, &c) // it may have just been recorded
	ours := err == nil && p.ours().Matches(labels.Set(c.Labels)) && c.DeletionTimestamp.IsZero()
	if apierrors.IsNotFound(err) || err == nil && !ours {
		return nil, wire.Errorf(wire.CodeLeaseExpired, "the lease has ended")
	}
	if err != nil {
		return nil, fmt.Errorf("agentsandbox: reading claim %s: %w", name, err)
	}
	pod, err := p.surePodOf(ctx, &c)
	if err != nil {
		return nil, err
	}
	if pod == nil && c.Annotations[annotationRecord] != "" {
		return nil, wire.Errorf(wire.CodeLeaseExpired, "the lease has ended: its pod is gone")
	}
	return p.adopted(&c, pod), nil
}

// TakeOver implements broker.Shared.
func (p *Provider) TakeOver(ctx context.Context, sb broker.Sandbox, replica string) error {
	s, err := ours(sb)
	if err != nil {
		return err
	}
	if err := s.own(ctx, replica); err != nil {
		return err
	}
	p.keep(s)
	return nil
}

// ours is a sandbox that a provider of this kind made.
func ours(sb broker.Sandbox) (*sandbox, error) {
	s, ok := sb.(*sandbox)
	if !ok {
		return nil, fmt.Errorf("agentsandbox: sandbox %s is another provider's", sb.ID().Name)
	}
	return s, nil
}

// EndOwned implements broker.Shared.
func (p *Provider) EndOwned(ctx context.Context, sb broker.Sandbox, replica, lease string) error {
	s, err := ours(sb)
	if err != nil {
		return err
	}
	return s.endOwned(ctx, replica, lease)
}

// podOf finds the pod adopted for a claim; nil when there is none.
func (p *Provider) podOf(ctx context.Context, c *extensionsv1beta1.SandboxClaim) (*corev1.Pod, error) {
	var pods corev1.PodList
	err := p.client.List(ctx, &pods, client.InNamespace(p.opts.Namespace), client.MatchingFields{indexClaim: string(c.UID)})
	if err != nil {
		return nil, fmt.Errorf("agentsandbox: finding the pod of claim %s: %w", c.Name, err)
	}
	for i := range pods.Items {
		if pods.Items[i].Name == c.Status.SandboxStatus.Name {
			return &pods.Items[i], nil
		}
	}
	return nil, nil
}

// surePodOf is podOf for a claim that may be leased. Such a claim had its pod when it was
// recorded: if the watch does not know it, the watch is behind, and the API server is
// asked.
func (p *Provider) surePodOf(ctx context.Context, c *extensionsv1beta1.SandboxClaim) (*corev1.Pod, error) {
	pod, err := p.podOf(ctx, c)
	if pod != nil || err != nil || c.Annotations[annotationRecord] == "" {
		return pod, err
	}
	pods, err := p.livePods(ctx, c.UID)
	for i := range pods {
		if pods[i].Name == c.Status.SandboxStatus.Name {
			return &pods[i], nil
		}
	}
	return nil, err
}

// livePods asks the API server for the pods of a claim.
func (p *Provider) livePods(ctx context.Context, claim types.UID) ([]corev1.Pod, error) {
	var pods corev1.PodList
	err := p.live.List(ctx, &pods, client.InNamespace(p.opts.Namespace), client.MatchingLabels{extensionsv1beta1.SandboxIDLabel: string(claim)})
	if err != nil {
		return nil, fmt.Errorf("agentsandbox: asking for the pod of claim %s: %w", claim, err)
	}
	return pods.Items, nil
}

// adopted is describe, and from now on the sandbox's death is reported.
func (p *Provider) adopted(c *extensionsv1beta1.SandboxClaim, pod *corev1.Pod) *sandbox {
	s := p.describe(c, pod)
	p.keep(s)
	return s
}

// keep reports the sandbox's death from now on.
func (p *Provider) keep(s *sandbox) {
	uid := types.UID(s.id.Claim)
	p.mu.Lock()
	p.known[uid] = s.id
	p.mu.Unlock()
	p.check(uid)
}

// describe makes the Sandbox of a claim and its pod, which may be nil.
func (p *Provider) describe(c *extensionsv1beta1.SandboxClaim, pod *corev1.Pod) *sandbox {
	s := &sandbox{p: p, id: broker.SandboxID{Name: c.Name, Claim: string(c.UID)}, info: broker.SandboxInfo{Pool: c.Labels[labelPool], Owner: c.Labels[labelOwner]}}
	if pod != nil {
		s.id.Pod, s.pod = string(pod.UID), pod.Name
		s.info.Warm = pod.Name != c.Name
		if rc := pod.Spec.RuntimeClassName; rc != nil {
			s.info.Isolation = *rc
		}
	}
	s.info.Record = p.recordOf(c)
	return s
}

// recordOf reads what Record wrote on a claim; nil: nothing that can be read.
func (p *Provider) recordOf(c *extensionsv1beta1.SandboxClaim) *broker.Record {
	text := c.Annotations[annotationRecord]
	if text == "" {
		return nil
	}
	r := &broker.Record{}
	if err := json.Unmarshal([]byte(text), r); err != nil {
		p.log.Warn("a claim's record is not readable; it counts as none", "claim", c.Name, "error", err)
		return nil
	}
	return r
}

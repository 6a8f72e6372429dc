package agentsandbox

import (
	"context"
	"fmt"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	toolscache "k8s.io/client-go/tools/cache"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"

	extensionsv1beta1 "sigs.k8s.io/agent-sandbox/extensions/api/v1beta1"

	"github.com/sandbox-broker/sandbox-broker/broker"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// observe registers for the changes of claims and pods, before the watches start.
func (p *Provider) observe(ctx context.Context) error {
	err := p.cache.IndexField(ctx, &corev1.Pod{}, indexClaim, func(o client.Object) []string {
		return []string{o.GetLabels()[extensionsv1beta1.SandboxIDLabel]}
	})
	if err != nil {
		return fmt.Errorf("agentsandbox: indexing pods: %w", err)
	}
	err = p.cache.IndexField(ctx, &extensionsv1beta1.SandboxClaim{}, indexPool, func(o client.Object) []string {
		return []string{o.GetLabels()[labelPool]}
	})
	if err != nil {
		return fmt.Errorf("agentsandbox: indexing claims: %w", err)
	}
	pods, err := p.cache.GetInformer(ctx, &corev1.Pod{}, cache.BlockUntilSynced(false))
	if err != nil {
		return fmt.Errorf("agentsandbox: watching pods: %w", err)
	}
	claims, err := p.cache.GetInformer(ctx, &extensionsv1beta1.SandboxClaim{}, cache.BlockUntilSynced(false))
	if err != nil {
		return fmt.Errorf("agentsandbox: watching claims: %w", err)
	}
	if _, err := p.cache.GetInformer(ctx, &extensionsv1beta1.SandboxWarmPool{}, cache.BlockUntilSynced(false)); err != nil {
		return fmt.Errorf("agentsandbox: watching warm pools: %w", err)
	}
	if _, err := p.cache.GetInformer(ctx, &coordinationv1.Lease{}, cache.BlockUntilSynced(false)); err != nil {
		return fmt.Errorf("agentsandbox: watching coordination Leases: %w", err)
	}
	if _, err := pods.AddEventHandler(handler(p.podChanged, p.podGone)); err != nil {
		return fmt.Errorf("agentsandbox: watching pods: %w", err)
	}
	if _, err := claims.AddEventHandler(handler(
		p.claimChanged,
		func(c *extensionsv1beta1.SandboxClaim) {
			p.changed(c.UID)
			p.report(c.UID, "", fateDeleted("the claim was deleted"))
		},
	)); err != nil {
		return fmt.Errorf("agentsandbox: watching claims: %w", err)
	}
	return nil
}

// handler adapts typed functions; old is nil for an object seen first.
func handler[T client.Object](changed func(old, now T), gone func(T)) toolscache.ResourceEventHandler {
	return toolscache.ResourceEventHandlerFuncs{
		AddFunc: func(o any) {
			var none T
			if now, ok := o.(T); ok {
				changed(none, now)
			}
		},
		UpdateFunc: func(o, n any) {
			old, ok1 := o.(T)
			now, ok2 := n.(T)
			if !ok1 || !ok2 {
				return
			}
			if old.GetUID() != now.GetUID() {
				gone(old) // the watch was interrupted and missed the deletion
			}
			changed(old, now)
		},
		DeleteFunc: func(o any) {
			if t, ok := o.(toolscache.DeletedFinalStateUnknown); ok {
				o = t.Obj
			}
			if last, ok := o.(T); ok {
				gone(last)
			}
		},
	}
}

// claimChanged wakes who waits for the claim, and tells the broker when another
// replica has taken it over.
func (p *Provider) claimChanged(old, c *extensionsv1beta1.SandboxClaim) {
	p.changed(c.UID)
	if old == nil || old.Labels[labelOwner] == c.Labels[labelOwner] {
		return
	}
	p.mu.Lock()
	id, ok := p.known[c.UID]
	moved := p.moved
	ok = ok && moved != nil && old.Labels[labelOwner] == p.replica
	p.mu.Unlock()
	if ok {
		moved(id)
	}
}

func (p *Provider) podChanged(_, pod *corev1.Pod) {
	uid := claimOf(pod)
	p.changed(uid)
	if f, dead := fateOf(pod); dead {
		p.report(uid, pod.UID, f)
	}
}

func (p *Provider) podGone(pod *corev1.Pod) {
	uid := claimOf(pod)
	p.changed(uid)
	f, dead := fateOf(pod)
	if !dead {
		f = fateDeleted("the pod was deleted")
	}
	p.report(uid, pod.UID, f)
}

func claimOf(pod *corev1.Pod) types.UID {
	return types.UID(pod.Labels[extensionsv1beta1.SandboxIDLabel])
}

// changed wakes who waits for the claim.
func (p *Provider) changed(uid types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if c := p.waiting[uid]; c != nil {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

// report tells the broker about a death, once. With a pod's UID it counts only
// if that is the pod the sandbox was taken with: a blank replacement's fate is
// nobody's.
func (p *Provider) report(claim, pod types.UID, f broker.Fate) {
	p.mu.Lock()
	id, ok := p.known[claim]
	if !ok || p.died == nil || (pod != "" && string(pod) != id.Pod) {
		p.mu.Unlock()
		return
	}
	delete(p.known, claim)
	died := p.died
	p.mu.Unlock()
	died(id, f)
}

// check looks at a sandbox's pod, in case it died before anybody was told to care. That
// the watch does not know the pod proves nothing, since it may be behind: it was cut
// off, or the pod has just been adopted. Then the API server is asked.
func (p *Provider) check(claim types.UID) {
	p.mu.Lock()
	id, ok := p.known[claim]
	p.mu.Unlock()
	if !ok {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), abandonTimeout)
	defer cancel()
	var pods corev1.PodList
	err := p.client.List(ctx, &pods, client.InNamespace(p.opts.Namespace), client.MatchingFields{indexClaim: string(claim)})
	if err == nil && p.checkIn(pods.Items, id) {
		return
	}
	if err == nil {
		pods.Items, err = p.livePods(ctx, claim)
	}
	if err != nil {
		p.log.Warn("a sandbox's pod could not be looked up", "sandbox", id.Name, "error", err)
		return
	}
	if !p.checkIn(pods.Items, id) {
		p.report(claim, "", fateDeleted("the pod is gone"))
	}
}

// checkIn finds a sandbox's pod among pods, and reports its death if it has died.
func (p *Provider) checkIn(pods []corev1.Pod, id broker.SandboxID) bool {
	for i := range pods {
		pod := &pods[i]
		if string(pod.UID) != id.Pod {
			continue
		}
		if f, dead := fateOf(pod); dead {
			p.report(types.UID(id.Claim), pod.UID, f)
		}
		return true
	}
	return false
}

// Watch implements broker.Provider.
func (p *Provider) Watch(ctx context.Context, died func(broker.SandboxID, broker.Fate)) error {
	p.mu.Lock()
	p.died = died
	known := make([]types.UID, 0, len(p.known))
	for uid := range p.known {
		known = append(known, uid)
	}
	p.mu.Unlock()
	for _, uid := range known {
		p.check(uid)
	}
	<-ctx.Done()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.died = nil
	return nil
}

func fateDeleted(message string) broker.Fate {
	return broker.Fate{Reason: wire.ReasonLost, Cause: wire.CauseDeleted, Message: message}
}

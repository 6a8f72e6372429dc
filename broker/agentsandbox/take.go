package agentsandbox

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	sandboxv1beta1 "sigs.k8s.io/agent-sandbox/api/v1beta1"
	extensionsv1beta1 "sigs.k8s.io/agent-sandbox/extensions/api/v1beta1"

	"github.com/sandbox-broker/sandbox-broker/broker"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// abandonTimeout bounds the deletion of a claim whose take failed.
const abandonTimeout = 10 * time.Second

// Reasons why a take cannot succeed by waiting; users see them.
const (
	reasonImage         = "image_error"
	reasonUnschedulable = "unschedulable"
	reasonQuota         = "quota"
	reasonConfig        = wire.ReasonConfiguration
	reasonTimeout       = "timeout"
)

// Take implements broker.Provider.
func (p *Provider) Take(ctx context.Context, req broker.TakeRequest) (broker.Sandbox, error) {
	claim := p.newClaim(req)
	// The watch may report the claim before Create returns; its waiter is found
	// by UID, and looks at once.
	if err := p.client.Create(ctx, claim); err != nil {
		// It may have been created all the same: a name is used only once.
		p.abandon(ctx, claim)
		return nil, createError(err)
	}
	s, err := p.ready(ctx, claim)
	if err != nil {
		p.abandon(ctx, claim)
		return nil, err
	}
	return s, nil
}

func (p *Provider) newClaim(req broker.TakeRequest) *extensionsv1beta1.SandboxClaim {
	var b [8]byte
	_, _ = rand.Read(b[:]) // crypto/rand never fails
	until := metav1.NewTime(req.Until)
	return &extensionsv1beta1.SandboxClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: p.opts.Namespace,
			Name:      "sbx-" + hex.EncodeToString(b[:]),
			Labels:    map[string]string{labelManagedBy: managedBy, labelInstance: p.opts.Instance, labelPool: req.Pool, labelOwner: req.Owner},
		},
		Spec: extensionsv1beta1.SandboxClaimSpec{
			WarmPoolRef: extensionsv1beta1.SandboxWarmPoolRef{Name: req.WarmPool},
			// Neither environment nor volumes: they would force a cold start.
			Lifecycle: &extensionsv1beta1.Lifecycle{ShutdownTime: &until, ShutdownPolicy: extensionsv1beta1.ShutdownPolicyDelete},
		},
	}
}

// createError says which refusals of a claim no waiting will mend.
func createError(err error) error {
	if apierrors.IsForbidden(err) && overQuota(err.Error()) {
		return wire.NotReady(reasonQuota, "the cluster refuses the broker's claim: %v", err)
	}
	if apierrors.IsForbidden(err) || apierrors.IsInvalid(err) || apierrors.IsNotFound(err) || meta.IsNoMatchError(err) {
		return wire.NotReady(reasonConfig, "the cluster refuses the broker's claim: %v", err)
	}
	return fmt.Errorf("agentsandbox: creating a claim: %w", err)
}

// abandon deletes the claim of a take that failed, whoever cancelled it. If that
// fails too, the claim's own end deletes it.
func (p *Provider) abandon(ctx context.Context, c *extensionsv1beta1.SandboxClaim) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), abandonTimeout)
	defer cancel()
	if err := p.client.Delete(ctx, c); err != nil && !apierrors.IsNotFound(err) {
		p.log.Warn("the claim of a failed take is left to its own end", "claim", c.Name, "error", err)
	}
}

// ready waits until the claim has a sandbox whose pod is ready.
func (p *Provider) ready(ctx context.Context, c *extensionsv1beta1.SandboxClaim) (*sandbox, error) {
	changed := p.subscribe(c.UID)
	defer p.unsubscribe(c.UID)
	last := errors.New("agent-sandbox has not looked at the claim yet: is its controller running?")
	seen := false
	for {
		s, why, err := p.evaluate(ctx, c, &seen)
		if s != nil || err != nil {
			return s, err
		}
		if why != nil {
			last = why
		}
		select {
		case <-changed:
		case <-ctx.Done():
			if errors.Is(ctx.Err(), context.DeadlineExceeded) {
				return nil, wire.NotReady(reasonTimeout, "no sandbox became ready in time: %v", last)
			}
			return nil, fmt.Errorf("agentsandbox: waiting for claim %s: %w", c.Name, ctx.Err())
		}
	}
}

// evaluate looks at a claim and its pod once: a sandbox, a reason to go on
// waiting, or an error that waiting will not mend. seen is kept from look to look:
// a claim that is not there was deleted if it was there before.
func (p *Provider) evaluate(ctx context.Context, c *extensionsv1beta1.SandboxClaim, seen *bool) (*sandbox, error, error) {
	var now extensionsv1beta1.SandboxClaim
	err := p.client.Get(ctx, client.ObjectKeyFromObject(c), &now)
	gone := apierrors.IsNotFound(err)
	switch {
	case gone && !*seen:
		return nil, nil, nil // the watch has not seen it yet
	case err != nil && !gone:
		return nil, nil, fmt.Errorf("agentsandbox: reading claim %s: %w", c.Name, err)
	case gone || now.UID != c.UID || !now.DeletionTimestamp.IsZero():
		return nil, nil, fmt.Errorf("agentsandbox: claim %s was deleted while it was being bound", c.Name)
	}
	*seen = true
	cond := meta.FindStatusCondition(now.Status.Conditions, string(sandboxv1beta1.SandboxConditionReady))
	if cond == nil {
		return nil, nil, nil
	}
	if reason, ok := finalReasons[cond.Reason]; ok && cond.Status == metav1.ConditionFalse {
		return nil, nil, wire.NotReady(reason, "%s: %s", cond.Reason, cond.Message)
	}
	if cond.Status == metav1.ConditionFalse && overQuota(cond.Message) {
		return nil, nil, wire.NotReady(reasonQuota, "%s: %s", cond.Reason, cond.Message)
	}
	pod, err := p.podOf(ctx, &now)
	if err != nil {
		return nil, nil, err
	}
	if pod == nil {
		return nil, fmt.Errorf("%s: %s", cond.Reason, cond.Message), nil
	}
	if err := hopeless(pod); err != nil {
		return nil, nil, err
	}
	if cond.Status != metav1.ConditionTrue || !podReady(pod) {
		return nil, fmt.Errorf("%s: %s", cond.Reason, cond.Message), nil
	}
	return p.adopted(&now, pod), nil, nil
}

// overQuota reports whether a refusal is a ResourceQuota's. Kubernetes says that by its
// text alone (plugin/pkg/admission/resourcequota), which agent-sandbox passes on in the
// message of a claim whose pod was refused.
func overQuota(message string) bool {
	return strings.Contains(message, "forbidden: exceeded quota: ")
}

// finalReasons are agent-sandbox's reasons of Ready=False that an admin has to
// mend, with the reason users get.
var finalReasons = map[string]string{
	"TemplateNotFound":         reasonConfig,
	"WarmPoolNotFound":         reasonConfig,
	"InvalidMetadata":          reasonConfig,
	"EnvVarsInjectionRejected": reasonConfig,
}

// finalWaits are the kubelet's reasons of a waiting container that do not pass
// by themselves.
var finalWaits = map[string]string{
	"ErrImagePull": reasonImage, "ImagePullBackOff": reasonImage, "InvalidImageName": reasonImage,
	"ErrImageNeverPull": reasonImage, "ImageInspectError": reasonImage, "RegistryUnavailable": reasonImage,
	"CreateContainerConfigError": reasonConfig, "CreateContainerError": reasonConfig, "RunContainerError": reasonConfig,
}

// hopeless returns the error of a pod that will not become ready by waiting.
func hopeless(pod *corev1.Pod) error {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodScheduled && c.Status == corev1.ConditionFalse && c.Reason == corev1.PodReasonUnschedulable {
			return wire.NotReady(reasonUnschedulable, "no node takes the sandbox's pod: %s", c.Message)
		}
	}
	for _, statuses := range [][]corev1.ContainerStatus{pod.Status.InitContainerStatuses, pod.Status.ContainerStatuses} {
		for _, st := range statuses {
			if w := st.State.Waiting; w != nil && finalWaits[w.Reason] != "" {
				return wire.NotReady(finalWaits[w.Reason], "container %s: %s: %s", st.Name, w.Reason, w.Message)
			}
		}
	}
	if f, dead := fateOf(pod); dead {
		return fmt.Errorf("agentsandbox: the pod died before it was used: %s", f.Message)
	}
	return nil
}

func podReady(pod *corev1.Pod) bool {
	if pod.Status.Phase != corev1.PodRunning {
		return false
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// subscribe returns a channel that is signalled when something about the claim
// changes.
func (p *Provider) subscribe(uid types.UID) <-chan struct{} {
	p.mu.Lock()
	defer p.mu.Unlock()
	c := make(chan struct{}, 1)
	p.waiting[uid] = c
	return c
}

func (p *Provider) unsubscribe(uid types.UID) {
	p.mu.Lock()
	defer p.mu.Unlock()
	delete(p.waiting, uid)
}

package bench

import (
	"context"
	"errors"
	"fmt"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"sigs.k8s.io/controller-runtime/pkg/client"

	sandboxv1beta1 "sigs.k8s.io/agent-sandbox/api/v1beta1"
	extensionsv1beta1 "sigs.k8s.io/agent-sandbox/extensions/api/v1beta1"
)

// releaseTimeout bounds the deletion of one claim.
const releaseTimeout = 15 * time.Second

// ClaimExec makes one call as it is done with agent-sandbox and kubectl's means
// alone: claim a sandbox, watch until it is ready, one exec in it. That its claim
// is deleted then is not part of the sample, as with the broker.
func (c *Cluster) ClaimExec(ctx context.Context) (sample Sample, err error) {
	claim := c.newClaim()
	watching, err := c.kube.Watch(ctx, &extensionsv1beta1.SandboxClaimList{}, client.InNamespace(c.namespace), client.MatchingFields{"metadata.name": claim.Name})
	if err != nil {
		return Sample{}, fmt.Errorf("bench: watching a claim: %w", err)
	}
	defer watching.Stop()
	w := newStopwatch()
	if err := c.kube.Create(ctx, claim); err != nil {
		return Sample{}, fmt.Errorf("bench: creating a claim: %w", err)
	}
	defer func() { err = errors.Join(err, c.unclaim(ctx, claim)) }()
	pod, err := bound(ctx, watching)
	if err != nil {
		return Sample{}, err
	}
	if err := c.run(ctx, pod, []string{"python3", "-c", program}, nil, w); err != nil {
		return Sample{}, err
	}
	return w.sample()
}

func (c *Cluster) newClaim() *extensionsv1beta1.SandboxClaim {
	end := metav1.NewTime(time.Now().Add(c.claimLife))
	return &extensionsv1beta1.SandboxClaim{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.namespace, Name: c.name("bench"), Labels: map[string]string{labelRun: c.own}},
		Spec: extensionsv1beta1.SandboxClaimSpec{
			WarmPoolRef: extensionsv1beta1.SandboxWarmPoolRef{Name: c.warmPool},
			Lifecycle:   &extensionsv1beta1.Lifecycle{ShutdownTime: &end, ShutdownPolicy: extensionsv1beta1.ShutdownPolicyDelete},
		},
	}
}

// unclaim deletes a claim, whoever cancelled ctx.
func (c *Cluster) unclaim(ctx context.Context, claim *extensionsv1beta1.SandboxClaim) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	if err := c.kube.Delete(ctx, claim); err != nil && !apierrors.IsNotFound(err) {
		return fmt.Errorf("bench: deleting claim %s: %w", claim.Name, err)
	}
	return nil
}

// bound waits until a claim has a sandbox that is ready, and returns its pod.
func bound(ctx context.Context, claims watch.Interface) (pod string, err error) {
	for {
		select {
		case e, ok := <-claims.ResultChan():
			if !ok {
				return "", errors.New("bench: the watch of a claim ended")
			}
			claim, ok := e.Object.(*extensionsv1beta1.SandboxClaim)
			if !ok {
				return "", fmt.Errorf("bench: watching a claim: %w", apierrors.FromObject(e.Object))
			}
			if e.Type == watch.Deleted {
				return "", fmt.Errorf("bench: claim %s was deleted while it was being bound", claim.Name)
			}
			if meta.IsStatusConditionTrue(claim.Status.Conditions, string(sandboxv1beta1.SandboxConditionReady)) {
				return claim.Status.SandboxStatus.Name, nil
			}
		case <-ctx.Done():
			return "", fmt.Errorf("bench: waiting for a claim's sandbox: %w", ctx.Err())
		}
	}
}

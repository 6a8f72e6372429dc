//go:build e2e

package e2e

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	extensionsv1beta1 "sigs.k8s.io/agent-sandbox/extensions/api/v1beta1"

	"github.com/sandbox-broker/sandbox-broker/broker"
	"github.com/sandbox-broker/sandbox-broker/broker/agentsandbox"
	"github.com/sandbox-broker/sandbox-broker/conformance"
	"github.com/sandbox-broker/sandbox-broker/internal/kube"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

func podByName(name string) *corev1.Pod {
	p := &corev1.Pod{}
	p.Namespace, p.Name = namespace, name
	return p
}

// TestProviderConformance holds broker/agentsandbox against the suite that every
// provider has to pass.
func TestProviderConformance(t *testing.T) {
	config, err := kube.Config("")
	require.NoError(t, err)
	life, end := context.WithCancel(context.Background())
	defer end()
	p, err := agentsandbox.New(within(t, time.Minute), life, agentsandbox.Options{Config: config, Namespace: namespace, Instance: "e2e-conformance"})
	require.NoError(t, err)
	conformance.Provider(t, func(*testing.T) conformance.Subject {
		return conformance.Subject{
			Provider: p, Pool: "conformance", WarmPool: warmPool,
			Kill: func(ctx context.Context, s broker.Sandbox) error {
				pod, err := podOfClaim(ctx, s.ID())
				if err != nil {
					return err
				}
				return k8s.Delete(ctx, pod, client.GracePeriodSeconds(1))
			},
			Exists: func(ctx context.Context, s broker.Sandbox) (bool, error) {
				var c extensionsv1beta1.SandboxClaim
				err := k8s.Get(ctx, client.ObjectKey{Namespace: namespace, Name: s.ID().Name}, &c)
				if err == nil {
					return true, nil
				}
				if !apierrors.IsNotFound(err) {
					return false, err
				}
				pod, err := podOfClaim(ctx, s.ID())
				return pod != nil, err
			},
			Reopen: func(t *testing.T) broker.Provider {
				again, err := agentsandbox.New(within(t, time.Minute), life, agentsandbox.Options{Config: config, Namespace: namespace, Instance: "e2e-conformance"})
				require.NoError(t, err)
				return again
			},
		}
	})
	claims, err := claimsOf(within(t, time.Minute), "e2e-conformance")
	require.NoError(t, err)
	require.Empty(t, claims)
}

// What another replica owns by now is not ended, nor moved, and its owner ends it.
func TestWhatAnotherReplicaOwnsIsLeftAlone(t *testing.T) {
	const instance = "e2e-owners"
	config, err := kube.Config("")
	require.NoError(t, err)
	life, end := context.WithCancel(context.Background())
	defer end()
	ctx := within(t, 2*time.Minute)
	p, err := agentsandbox.New(ctx, life, agentsandbox.Options{Config: config, Namespace: namespace, Instance: instance})
	require.NoError(t, err)
	old, err := p.Take(ctx, broker.TakeRequest{Owner: "a", Pool: "owners", WarmPool: warmPool, Until: time.Now().Add(5 * time.Minute)})
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, old.End(within(t, time.Minute))) })
	now, err := p.Find(ctx, old.ID().Name)
	require.NoError(t, err)
	require.NoError(t, p.TakeOver(ctx, now, "b"))

	require.ErrorIs(t, p.EndOwned(ctx, old, "a", ""), wire.ErrConflict)
	require.ErrorIs(t, old.Extend(ctx, time.Now()), wire.ErrConflict)
	require.NoError(t, now.Extend(ctx, time.Now().Add(10*time.Minute)))
	claims, err := claimsOf(ctx, instance)
	require.NoError(t, err)
	require.Len(t, claims, 1)
	require.True(t, claims[0].DeletionTimestamp.IsZero())
	require.Greater(t, time.Until(claims[0].Spec.Lifecycle.ShutdownTime.Time), 6*time.Minute)

	// The controller writes to the claim, and the version is another one then.
	eventually(t, time.Minute, "its owner ends it", func() bool { return p.EndOwned(ctx, now, "b", "") == nil })
	eventually(t, time.Minute, "the claim is gone", func() bool {
		claims, err := claimsOf(ctx, instance)
		return err == nil && len(claims) == 0
	})
}

// podOfClaim finds the very pod of a sandbox; nil when it is gone.
func podOfClaim(ctx context.Context, id broker.SandboxID) (*corev1.Pod, error) {
	var pods corev1.PodList
	if err := k8s.List(ctx, &pods, client.InNamespace(namespace), client.MatchingLabels{"agents.x-k8s.io/claim-uid": id.Claim}); err != nil {
		return nil, err
	}
	for i := range pods.Items {
		if string(pods.Items[i].UID) == id.Pod {
			return &pods.Items[i], nil
		}
	}
	return nil, nil
}

package agentsandbox

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	extensionsv1beta1 "sigs.k8s.io/agent-sandbox/extensions/api/v1beta1"

	"github.com/sandbox-broker/sandbox-broker/broker"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

func TestAWaitingTakeIsWokenByTheWatch(t *testing.T) {
	t.Parallel()
	looked := make(chan struct{})
	p := provider(t, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			err := c.Get(ctx, key, o, opts...)
			if err != nil { // only the first look finds nothing
				close(looked)
			}
			return err
		},
	})
	type result struct {
		s   *sandbox
		err error
	}
	done := make(chan result, 1)
	go func() {
		s, err := p.ready(t.Context(), claim())
		done <- result{s, err}
	}()
	<-looked
	require.NoError(t, p.client.Create(t.Context(), readyPod()))
	require.NoError(t, p.client.Create(t.Context(), claim()))
	p.changed("claim-2") // another's news
	p.changed("claim-1")
	r := <-done
	require.NoError(t, r.err)
	require.Equal(t, "pod-1", r.s.ID().Pod)
	require.Empty(t, p.waiting, "nobody waits any more")
}

// A claim has no finalizer: when somebody deletes it, it is gone at once. To wait
// for the timeout would take its place in the pool, and tell the whole queue.
func TestATakeWhoseClaimVanishesFails(t *testing.T) {
	t.Parallel()
	looked := make(chan struct{}, 2)
	p := provider(t, interceptor.Funcs{
		Get: func(ctx context.Context, c client.WithWatch, key client.ObjectKey, o client.Object, opts ...client.GetOption) error {
			defer func() { looked <- struct{}{} }()
			return c.Get(ctx, key, o, opts...)
		},
	}, claim(says("Ready", metav1.ConditionFalse, "SandboxNotReady")))
	done := make(chan error, 1)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Second)
	defer cancel()
	go func() {
		_, err := p.ready(ctx, claim())
		done <- err
	}()
	<-looked
	require.NoError(t, p.client.Delete(t.Context(), claim()))
	p.changed("claim-1")
	err := <-done
	require.ErrorContains(t, err, "was deleted while it was being bound")
	require.Nil(t, wire.AsError(err))
}

func TestATakeGivesUp(t *testing.T) {
	t.Parallel()
	late, cancel := context.WithDeadline(t.Context(), time.Unix(1, 0))
	defer cancel()
	gone, leave := context.WithCancel(t.Context())
	leave()
	pending := claim(says("Ready", metav1.ConditionFalse, "SandboxNotReady"))
	for name, tt := range map[string]struct {
		ctx     context.Context //nolint:containedctx // how it ends is what the case is about
		objects []client.Object
		reason  string
		want    string
	}{
		"in time, and says what was missing":     {late, []client.Object{pending}, "timeout", "SandboxNotReady: told"},
		"in time, and asks about the controller": {late, nil, "timeout", "is its controller running?"},
		"with its caller":                        {gone, []client.Object{pending}, "", context.Canceled.Error()},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := provider(t, interceptor.Funcs{}, tt.objects...)
			s, err := p.ready(tt.ctx, claim())
			require.Nil(t, s)
			require.ErrorContains(t, err, tt.want)
			require.Empty(t, p.waiting)
			if tt.reason != "" {
				notReadyFor(t, err, tt.reason)
				return
			}
			require.Nil(t, wire.AsError(err), "nothing is wrong with the pool")
			require.ErrorIs(t, err, context.Canceled)
		})
	}
}

// asAgentSandbox gives a new claim its UID and what agent-sandbox would say of it.
func asAgentSandbox(answer func(*extensionsv1beta1.SandboxClaim)) interceptor.Funcs {
	return interceptor.Funcs{Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
		if made, ok := o.(*extensionsv1beta1.SandboxClaim); ok {
			made.UID = "claim-1"
			made.Status.SandboxStatus.Name = "warm-1"
			answer(made)
		}
		return c.Create(ctx, o, opts...)
	}}
}

func claims(t *testing.T, p *Provider) []extensionsv1beta1.SandboxClaim {
	t.Helper()
	var all extensionsv1beta1.SandboxClaimList
	require.NoError(t, p.client.List(t.Context(), &all))
	return all.Items
}

func TestATakeMakesAClaimWithAnEnd(t *testing.T) {
	t.Parallel()
	p := provider(t, asAgentSandbox(says("Ready", metav1.ConditionTrue, "DependenciesReady")), readyPod())
	until := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	s, err := p.Take(t.Context(), broker.TakeRequest{Owner: "r1", Pool: "python", WarmPool: "pool", Until: until})
	require.NoError(t, err)
	require.Equal(t, "pod-1", s.ID().Pod)

	made := claims(t, p)
	require.Len(t, made, 1)
	require.Equal(t, s.ID().Name, made[0].Name)
	require.Equal(t, "sandboxes", made[0].Namespace)
	require.Equal(t, map[string]string{labelManagedBy: managedBy, labelInstance: "i", labelPool: "python", labelOwner: "r1"}, made[0].Labels)
	require.Equal(t, "pool", made[0].Spec.WarmPoolRef.Name)
	require.Empty(t, made[0].Spec.Env, "it would force a cold start")
	require.Equal(t, extensionsv1beta1.ShutdownPolicyDelete, made[0].Spec.Lifecycle.ShutdownPolicy)
	require.True(t, made[0].Spec.Lifecycle.ShutdownTime.Time.Equal(until))
}

func TestAFailedTakeLeavesNoClaim(t *testing.T) {
	t.Parallel()
	lost := errors.New("connection reset")
	unbound := func(c *extensionsv1beta1.SandboxClaim) { c.Status.Conditions = nil }
	for name, tt := range map[string]struct {
		cluster func(leave func()) interceptor.Funcs
		want    error
	}{
		"that can never succeed": {func(func()) interceptor.Funcs {
			return asAgentSandbox(says("Ready", metav1.ConditionFalse, "WarmPoolNotFound"))
		}, wire.ErrNotReady},
		"whose caller has left": {func(leave func()) interceptor.Funcs {
			return asAgentSandbox(func(c *extensionsv1beta1.SandboxClaim) {
				unbound(c)
				leave()
			})
		}, context.Canceled},
		"whose creation succeeded although it was answered by an error": {func(func()) interceptor.Funcs {
			create := asAgentSandbox(unbound).Create
			return interceptor.Funcs{Create: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.CreateOption) error {
				return errors.Join(create(ctx, c, o, opts...), lost)
			}}
		}, lost},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ctx, cancel := context.WithCancel(t.Context())
			defer cancel()
			funcs := tt.cluster(cancel)
			// The fake client does not look at contexts; a real one would not delete
			// with that of a caller who has left.
			funcs.Delete = func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
				return errors.Join(ctx.Err(), c.Delete(context.WithoutCancel(ctx), o, opts...))
			}
			var logged bytes.Buffer
			p := provider(t, funcs)
			p.log = slog.New(slog.NewTextHandler(&logged, nil))
			_, err := p.Take(ctx, broker.TakeRequest{Pool: "python", WarmPool: "pool"})
			require.ErrorIs(t, err, tt.want)
			require.Empty(t, claims(t, p))
			require.Empty(t, logged.String(), "the deletion failed")
		})
	}
}

func TestARefusedClaimIsTold(t *testing.T) {
	t.Parallel()
	for why, reason := range map[string]string{
		"no rights": "configuration",
		"exceeded quota: q, requested: count/sandboxclaims=1, used: 4, limited: 4": "quota",
	} {
		p := provider(t, interceptor.Funcs{Create: func(context.Context, client.WithWatch, client.Object, ...client.CreateOption) error {
			return apierrors.NewForbidden(extensionsv1beta1.GroupVersion.WithResource("sandboxclaims").GroupResource(), "sbx-1", errors.New(why))
		}})
		_, err := p.Take(t.Context(), broker.TakeRequest{Pool: "python", WarmPool: "pool"})
		notReadyFor(t, err, reason)
		require.ErrorContains(t, err, why)
	}
}

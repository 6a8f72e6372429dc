package agentsandbox

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	extensionsv1beta1 "sigs.k8s.io/agent-sandbox/extensions/api/v1beta1"

	"github.com/sandbox-broker/sandbox-broker/broker"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

func TestTakeOverChecksTheOwner(t *testing.T) {
	t.Parallel()
	claim := &extensionsv1beta1.SandboxClaim{ObjectMeta: metav1.ObjectMeta{
		Namespace: "sandboxes", Name: "sbx-1", UID: "claim-1",
		Labels: map[string]string{labelManagedBy: managedBy, labelInstance: "i", labelPool: "python", labelOwner: "dead"},
	}}
	var refuse error
	p := provider(t, interceptor.Funcs{Patch: func(ctx context.Context, c client.WithWatch, o client.Object, patch client.Patch, opts ...client.PatchOption) error {
		if refuse != nil {
			return refuse
		}
		return c.Patch(ctx, o, patch, opts...)
	}}, claim)
	found, err := p.List(t.Context())
	require.NoError(t, err)
	require.Len(t, found, 1)
	require.Equal(t, "dead", found[0].Info().Owner)
	// The owner's last word comes after the look at the claims.
	require.NoError(t, p.client.Patch(t.Context(), claim.DeepCopy(), client.RawPatch(types.MergePatchType,
		[]byte(`{"metadata":{"annotations":{"`+annotationRecord+`":"{\"lease\":\"l1\",\"tenant\":\"a\"}"}}}`))))
	require.Nil(t, found[0].Info().Record)
	require.NoError(t, p.TakeOver(t.Context(), found[0], "me"))
	require.NotNil(t, found[0].Info().Record, "the record as of now")
	require.Equal(t, "l1", found[0].Info().Record.Lease)
	require.Equal(t, "me", claims(t, p)[0].Labels[labelOwner])

	again, err := p.List(t.Context())
	require.NoError(t, err)
	// What an API server answers when a test of a JSON patch fails.
	refuse = apierrors.NewGenericServerResponse(422, "patch", schema.GroupResource{}, "sbx-1", "testing value /metadata/labels failed", 0, false)
	require.ErrorIs(t, p.TakeOver(t.Context(), again[0], "third"), wire.ErrConflict)
	refuse = apierrors.NewServiceUnavailable("down")
	err = p.TakeOver(t.Context(), again[0], "third")
	require.Error(t, err)
	require.NotErrorIs(t, err, wire.ErrConflict)
}

// A replica ends what it owns, and nothing that is another one's by now; who has another
// claim's name has ended already.
func TestEndOwnedChecksTheOwner(t *testing.T) {
	t.Parallel()
	owned := func(by string) *extensionsv1beta1.SandboxClaim {
		return claim(func(c *extensionsv1beta1.SandboxClaim) { c.Labels[labelOwner] = by })
	}
	leased := func(lease string) *extensionsv1beta1.SandboxClaim {
		c := owned("other")
		c.Annotations = map[string]string{annotationRecord: `{"lease":"` + lease + `","tenant":"a"}`}
		return c
	}
	for name, c := range map[string]struct {
		claim *extensionsv1beta1.SandboxClaim // as of now
		lease string                          // that has ended here
		err   error
		left  int
	}{
		"the lease was taken over":    {claim: leased("l1"), lease: "l1"},
		"it is another lease's":       {claim: leased("l2"), lease: "l1", err: wire.ErrConflict, left: 1},
		"it was in stock, and leased": {claim: leased(""), err: wire.ErrConflict, left: 1},
		"owned":                       {claim: owned("me")},
		"taken over":                  {claim: owned("other"), err: wire.ErrConflict, left: 1},
		"another one":                 {claim: claim(func(c *extensionsv1beta1.SandboxClaim) { c.UID = "claim-2" }), left: 1},
		"gone":                        {},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := provider(t, interceptor.Funcs{})
			if c.claim != nil {
				require.NoError(t, p.client.Create(t.Context(), c.claim))
			}
			sb := &sandbox{p: p, id: broker.SandboxID{Name: "sbx-1", Claim: "claim-1"}, info: broker.SandboxInfo{Owner: "me"}}
			require.ErrorIs(t, p.EndOwned(t.Context(), sb, "me", c.lease), c.err)
			require.Len(t, claims(t, p), c.left)
		})
	}
}

// A claim that changes between the look at its owner and its deletion is looked at again.
func TestEndOwnedIsOneStep(t *testing.T) {
	t.Parallel()
	p := provider(t, interceptor.Funcs{Delete: func(ctx context.Context, c client.WithWatch, o client.Object, opts ...client.DeleteOption) error {
		var d client.DeleteOptions
		d.ApplyOptions(opts)
		require.NotNil(t, d.Preconditions.ResourceVersion)
		return apierrors.NewConflict(schema.GroupResource{}, "sbx-1", errors.New("the version is another one"))
	}}, claim(func(c *extensionsv1beta1.SandboxClaim) { c.Labels[labelOwner] = "me" }))
	sb := &sandbox{p: p, id: broker.SandboxID{Name: "sbx-1", Claim: "claim-1"}, info: broker.SandboxInfo{Owner: "me"}}
	err := p.EndOwned(t.Context(), sb, "me", "")
	require.Error(t, err, "to be tried again")
	require.NotErrorIs(t, err, wire.ErrConflict)
}

// What the stock's guard moves is the end of its own sandbox only.
func TestExtendChecksTheOwner(t *testing.T) {
	t.Parallel()
	var sent []byte
	var refuse error
	p := provider(t, interceptor.Funcs{Patch: func(_ context.Context, _ client.WithWatch, o client.Object, patch client.Patch, _ ...client.PatchOption) (err error) {
		sent, err = patch.Data(o)
		return errors.Join(err, refuse)
	}})
	sb := &sandbox{p: p, id: broker.SandboxID{Name: "sbx-1", Claim: "claim-1"}, info: broker.SandboxInfo{Owner: "me"}}
	require.NoError(t, sb.Extend(t.Context(), time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)))
	require.JSONEq(t, `[
		{"op": "test", "path": "/metadata/uid", "value": "claim-1"},
		{"op": "test", "path": "`+ownerPath+`", "value": "me"},
		{"op": "replace", "path": "/spec/lifecycle/shutdownTime", "value": "2026-01-02T03:04:05Z"}]`, string(sent))
	refuse = apierrors.NewGenericServerResponse(422, "patch", schema.GroupResource{}, "sbx-1", "testing value /metadata/labels failed", 0, false)
	require.ErrorIs(t, sb.Extend(t.Context(), time.Now()), wire.ErrConflict)
	refuse = apierrors.NewServiceUnavailable("down")
	err := sb.Extend(t.Context(), time.Now())
	require.Error(t, err)
	require.NotErrorIs(t, err, wire.ErrConflict)
}

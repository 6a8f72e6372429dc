package agentsandbox

import (
	"context"
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/client/fake"
	"sigs.k8s.io/controller-runtime/pkg/client/interceptor"

	extensionsv1beta1 "sigs.k8s.io/agent-sandbox/extensions/api/v1beta1"

	"github.com/sandbox-broker/sandbox-broker/broker"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// provider is one whose watch has seen these objects.
func provider(t *testing.T, funcs interceptor.Funcs, objects ...client.Object) *Provider {
	t.Helper()
	scheme := runtime.NewScheme()
	require.NoError(t, corev1.AddToScheme(scheme))
	require.NoError(t, extensionsv1beta1.AddToScheme(scheme))
	require.NoError(t, coordinationv1.AddToScheme(scheme))
	own := make([]client.Object, len(objects)) // the fake client writes into what it is given
	for i, o := range objects {
		own[i] = o.DeepCopyObject().(client.Object)
	}
	c := fake.NewClientBuilder().WithScheme(scheme).WithObjects(own...).WithInterceptorFuncs(funcs).
		WithIndex(&corev1.Pod{}, indexClaim, func(o client.Object) []string { return []string{o.GetLabels()[extensionsv1beta1.SandboxIDLabel]} }).
		Build()
	return &Provider{
		opts: Options{Namespace: "sandboxes", Instance: "i"}, client: c, live: c, log: slog.New(slog.DiscardHandler),
		waiting: map[types.UID]chan struct{}{}, known: map[types.UID]broker.SandboxID{},
	}
}

// claim is a claim of this instance as agent-sandbox has left it: bound to the
// sandbox "warm-1", if change does not say otherwise.
func claim(change ...func(*extensionsv1beta1.SandboxClaim)) *extensionsv1beta1.SandboxClaim {
	c := &extensionsv1beta1.SandboxClaim{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "sandboxes", Name: "sbx-1", UID: "claim-1",
			Labels: map[string]string{labelManagedBy: managedBy, labelInstance: "i", labelPool: "python"},
		},
		Status: extensionsv1beta1.SandboxClaimStatus{SandboxStatus: extensionsv1beta1.SandboxStatus{Name: "warm-1"}},
	}
	says("Ready", metav1.ConditionTrue, "DependenciesReady")(c)
	for _, f := range change {
		f(c)
	}
	return c
}

// says replaces the claim's conditions by one.
func says(kind string, status metav1.ConditionStatus, reason string) func(*extensionsv1beta1.SandboxClaim) {
	return func(c *extensionsv1beta1.SandboxClaim) {
		c.Status.Conditions = []metav1.Condition{{Type: kind, Status: status, Reason: reason, Message: "told"}}
	}
}

// readyPod is the pod adopted for claim, if no option says otherwise.
func readyPod(options ...podOption) *corev1.Pod {
	class := "gvisor"
	pod := podWith(running(), condition(corev1.PodReady, corev1.ConditionTrue, "", ""))
	pod.ObjectMeta = metav1.ObjectMeta{
		Namespace: "sandboxes", Name: "warm-1", UID: "pod-1", Labels: map[string]string{extensionsv1beta1.SandboxIDLabel: "claim-1"},
	}
	pod.Spec.RuntimeClassName = &class
	for _, o := range options {
		o(pod)
	}
	return pod
}

// overQuotaOf is what agent-sandbox says when a ResourceQuota refuses what it makes.
func overQuotaOf(what string) func(*extensionsv1beta1.SandboxClaim) {
	return func(c *extensionsv1beta1.SandboxClaim) {
		says("Ready", metav1.ConditionFalse, "ReconcilerError")(c)
		c.Status.Conditions[0].Message = what + ` "x" is forbidden: exceeded quota: q, requested: pods=1, used: pods=0, limited: pods=0`
	}
}

func notReadyPod() *corev1.Pod {
	return readyPod(func(p *corev1.Pod) { p.Status.Conditions[0].Status = corev1.ConditionFalse })
}

func TestATakeGoesOnWaiting(t *testing.T) {
	t.Parallel()
	pending := says("Ready", metav1.ConditionFalse, "SandboxNotReady")
	for name, tt := range map[string]struct {
		objects []client.Object
		why     string // empty: there is nothing to tell yet
	}{
		"the watch has not seen the claim":         {nil, ""},
		"agent-sandbox has not looked at it":       {[]client.Object{claim(func(c *extensionsv1beta1.SandboxClaim) { c.Status.Conditions = nil })}, ""},
		"it has, and says nothing of readiness":    {[]client.Object{claim(says("Finished", metav1.ConditionTrue, "Done")), readyPod()}, ""},
		"no sandbox was adopted":                   {[]client.Object{claim(pending)}, "SandboxNotReady: told"},
		"ready, but the pod was not seen":          {[]client.Object{claim()}, "DependenciesReady: told"},
		"ready, but the pod is not":                {[]client.Object{claim(), notReadyPod()}, "DependenciesReady: told"},
		"the pod is ready, but the claim is not":   {[]client.Object{claim(pending), readyPod()}, "SandboxNotReady: told"},
		"the claim does not know":                  {[]client.Object{claim(says("Ready", metav1.ConditionUnknown, "SandboxNotReady")), readyPod()}, "SandboxNotReady: told"},
		"a final reason that holds no more":        {[]client.Object{claim(says("Ready", metav1.ConditionUnknown, "WarmPoolNotFound"))}, "WarmPoolNotFound: told"},
		"the ready pod is another claim's":         {[]client.Object{claim(), readyPod(func(p *corev1.Pod) { p.Labels[extensionsv1beta1.SandboxIDLabel] = "claim-2" })}, "DependenciesReady: told"},
		"the ready pod is of an earlier sandbox":   {[]client.Object{claim(), readyPod(func(p *corev1.Pod) { p.Name = "warm-0" })}, "DependenciesReady: told"},
		"the ready pod is in another namespace":    {[]client.Object{claim(), readyPod(func(p *corev1.Pod) { p.Namespace = "elsewhere" })}, "DependenciesReady: told"},
		"the pod of an earlier sandbox has died":   {[]client.Object{claim(), readyPod(nowEnded("Error", 1), func(p *corev1.Pod) { p.Name = "warm-0" })}, "DependenciesReady: told"},
		"the pod is being pulled for a cold start": {[]client.Object{claim(pending), readyPod(phase(corev1.PodPending), container(waiting("sandbox", "ContainerCreating")))}, "SandboxNotReady: told"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := provider(t, interceptor.Funcs{}, tt.objects...)
			s, why, err := p.evaluate(t.Context(), claim(), new(bool))
			require.NoError(t, err)
			require.Nil(t, s)
			require.Empty(t, p.known)
			if tt.why == "" {
				require.NoError(t, why)
			} else {
				require.EqualError(t, why, tt.why)
			}
		})
	}
}

func TestATakeFails(t *testing.T) {
	t.Parallel()
	final := func(reason string) []client.Object {
		return []client.Object{claim(says("Ready", metav1.ConditionFalse, reason)), readyPod()}
	}
	for name, tt := range map[string]struct {
		objects []client.Object
		want    string
		reason  string // of a failure that waiting does not mend; empty: another take may succeed
	}{
		"another claim has the name": {[]client.Object{claim(func(c *extensionsv1beta1.SandboxClaim) { c.UID = "claim-2" }), readyPod()}, "was deleted while it was being bound", ""},
		"the claim is being deleted": {[]client.Object{claim(func(c *extensionsv1beta1.SandboxClaim) {
			c.DeletionTimestamp, c.Finalizers = &metav1.Time{Time: time.Unix(1, 0)}, []string{"a/b"}
		}), readyPod()}, "was deleted while it was being bound", ""},
		"no template":              {final("TemplateNotFound"), "TemplateNotFound: told", "configuration"},
		"no warm pool":             {final("WarmPoolNotFound"), "WarmPoolNotFound: told", "configuration"},
		"metadata is refused":      {final("InvalidMetadata"), "InvalidMetadata: told", "configuration"},
		"environment is refused":   {final("EnvVarsInjectionRejected"), "EnvVarsInjectionRejected: told", "configuration"},
		"the image cannot be had":  {[]client.Object{claim(says("Ready", metav1.ConditionFalse, "SandboxNotReady")), readyPod(phase(corev1.PodPending), container(waiting("sandbox", "ErrImagePull")))}, "ErrImagePull: told", "image_error"},
		"the pod is over a quota":  {[]client.Object{claim(overQuotaOf("pods"))}, "exceeded quota", "quota"},
		"no node takes the pod":    {[]client.Object{claim(), readyPod(phase(corev1.PodPending), condition(corev1.PodScheduled, corev1.ConditionFalse, "Unschedulable", "full"))}, "full", "unschedulable"},
		"the pod has died":         {[]client.Object{claim(), readyPod(nowEnded("Error", 1))}, "died before it was used", ""},
		"the pod is being deleted": {[]client.Object{claim(), readyPod(deleted(), func(p *corev1.Pod) { p.Finalizers = []string{"a/b"} })}, "died before it was used", ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := provider(t, interceptor.Funcs{}, tt.objects...)
			s, why, err := p.evaluate(t.Context(), claim(), new(bool))
			require.ErrorContains(t, err, tt.want)
			require.Nil(t, s)
			require.NoError(t, why)
			require.Empty(t, p.known)
			if tt.reason == "" {
				require.Nil(t, wire.AsError(err))
			} else {
				notReadyFor(t, err, tt.reason)
			}
		})
	}
}

func TestAClusterThatCannotBeRead(t *testing.T) {
	t.Parallel()
	broken := errors.New("the cache is not running")
	for name, funcs := range map[string]interceptor.Funcs{
		"the claim": {Get: func(context.Context, client.WithWatch, client.ObjectKey, client.Object, ...client.GetOption) error {
			return broken
		}},
		"its pod": {List: func(context.Context, client.WithWatch, client.ObjectList, ...client.ListOption) error { return broken }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s, _, err := provider(t, funcs, claim(), readyPod()).evaluate(t.Context(), claim(), new(bool))
			require.ErrorIs(t, err, broken)
			require.Nil(t, s)
		})
	}
}

func TestAReadySandbox(t *testing.T) {
	t.Parallel()
	until := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	record := broker.Record{Tenant: "t", Kind: broker.KindLease, Boot: "b", Until: until}
	recorded := func(text string) func(*extensionsv1beta1.SandboxClaim) {
		return func(c *extensionsv1beta1.SandboxClaim) { c.Annotations = map[string]string{annotationRecord: text} }
	}
	cold := func(c *extensionsv1beta1.SandboxClaim) { c.Status.SandboxStatus.Name = "sbx-1" }
	for name, tt := range map[string]struct {
		claim *extensionsv1beta1.SandboxClaim
		pod   *corev1.Pod
		want  broker.SandboxInfo
	}{
		"warm":                          {claim(), readyPod(), broker.SandboxInfo{Pool: "python", Isolation: "gvisor", Warm: true}},
		"cold":                          {claim(cold), readyPod(func(p *corev1.Pod) { p.Name = "sbx-1" }), broker.SandboxInfo{Pool: "python", Isolation: "gvisor"}},
		"without a RuntimeClass":        {claim(), readyPod(func(p *corev1.Pod) { p.Spec.RuntimeClassName = nil }), broker.SandboxInfo{Pool: "python", Warm: true}},
		"with a record":                 {claim(recorded(string(wire.Marshal(record)))), readyPod(), broker.SandboxInfo{Pool: "python", Isolation: "gvisor", Warm: true, Record: &record}},
		"with a record that is garbage": {claim(recorded("{")), readyPod(), broker.SandboxInfo{Pool: "python", Isolation: "gvisor", Warm: true}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			// A blank successor of the same name must not be taken for it.
			other := readyPod(func(p *corev1.Pod) { p.Name, p.UID = "warm-2", "pod-2" })
			p := provider(t, interceptor.Funcs{}, tt.claim, tt.pod, other)
			s, why, err := p.evaluate(t.Context(), claim(), new(bool))
			require.NoError(t, err)
			require.NoError(t, why)
			require.Equal(t, broker.SandboxID{Name: "sbx-1", Claim: "claim-1", Pod: "pod-1"}, s.ID())
			require.Equal(t, tt.want, s.Info())
			require.Equal(t, map[types.UID]broker.SandboxID{"claim-1": s.ID()}, p.known, "its death will be reported")
		})
	}
}

// behind is a provider whose watch does not know what the API server has.
func behind(t *testing.T, objects ...client.Object) *Provider {
	t.Helper()
	p := provider(t, interceptor.Funcs{})
	p.live = provider(t, interceptor.Funcs{}, objects...).live
	return p
}

// recordedClaim is the claim of a lease.
func recordedClaim() *extensionsv1beta1.SandboxClaim {
	return claim(func(c *extensionsv1beta1.SandboxClaim) { c.Annotations = map[string]string{annotationRecord: "{}"} })
}

// A watch that is behind is no reason to take a lease's sandbox for dead.
func TestAWatchThatIsBehindIsNoDeath(t *testing.T) {
	t.Parallel()
	p := behind(t, recordedClaim(), readyPod())
	var died []broker.Fate
	p.died = func(_ broker.SandboxID, f broker.Fate) { died = append(died, f) }
	s, err := p.Find(t.Context(), "sbx-1")
	require.NoError(t, err)
	require.Equal(t, broker.SandboxID{Name: "sbx-1", Claim: "claim-1", Pod: "pod-1"}, s.ID())
	require.Empty(t, died)
	require.Contains(t, p.known, types.UID("claim-1"), "its death will be reported")
	p.podGone(readyPod())
	require.Len(t, died, 1)
}

func TestWhatTheAPIServerSaysOfALostPod(t *testing.T) {
	t.Parallel()
	successor := readyPod(func(p *corev1.Pod) { p.UID = "pod-2" })
	for name, pods := range map[string][]client.Object{"none": nil, "a blank successor": {successor}, "dead": {readyPod(nowEnded("Error", 137))}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			p := behind(t, pods...)
			var died []broker.Fate
			p.died = func(_ broker.SandboxID, f broker.Fate) { died = append(died, f) }
			p.known["claim-1"] = broker.SandboxID{Name: "sbx-1", Claim: "claim-1", Pod: "pod-1"}
			p.check("claim-1")
			require.Len(t, died, 1)
			require.Empty(t, p.known)
		})
	}
}

func TestALeaseWhosePodIsGoneIsOver(t *testing.T) {
	t.Parallel()
	_, err := behind(t, recordedClaim()).Find(t.Context(), "sbx-1")
	require.ErrorIs(t, err, wire.ErrLeaseExpired)
}

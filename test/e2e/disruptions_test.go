//go:build e2e

package e2e

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	schedulingv1 "k8s.io/api/scheduling/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	extensionsv1beta1 "sigs.k8s.io/agent-sandbox/extensions/api/v1beta1"
)

// What Kubernetes does to pods, done by Kubernetes itself: these are struck under a
// running exec by TestDeathUnderARunningExec.

// evict asks for the pod's eviction, as `kubectl drain` does.
func evict(t *testing.T, _ extensionsv1beta1.SandboxClaim, pod string) {
	ctx := within(t, time.Minute)
	require.NoError(t, k8s.SubResource("eviction").Create(ctx, podByName(pod), &policyv1.Eviction{}))
}

// preempt makes the scheduler end the pod for one of higher priority, which will not
// stand beside it.
func preempt(t *testing.T, claim extensionsv1beta1.SandboxClaim, _ string) {
	class := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "e2e-preemptor"}, Value: 1000}
	makeFor(t, class)
	automount, grace := false, int64(0)
	preemptor := &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: "e2e-preemptor", Namespace: metav1.NamespaceDefault},
		Spec: corev1.PodSpec{
			PriorityClassName: class.Name, AutomountServiceAccountToken: &automount, TerminationGracePeriodSeconds: &grace,
			Containers: []corev1.Container{{Name: "c", Image: "localhost/e2e/never-pulled:1", ImagePullPolicy: corev1.PullNever}},
			Affinity: &corev1.Affinity{PodAntiAffinity: &corev1.PodAntiAffinity{
				RequiredDuringSchedulingIgnoredDuringExecution: []corev1.PodAffinityTerm{{
					LabelSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"agents.x-k8s.io/claim-uid": string(claim.UID)}},
					Namespaces:    []string{namespace}, TopologyKey: corev1.LabelHostname,
				}},
			}},
		},
	}
	makeFor(t, preemptor)
}

// loseNode taints the node, as the node controller does with one that went away: it is
// the same controller then that ends the pods, at once if they tolerate no such node. It
// takes the taint off a node that answers, within seconds.
func loseNode(t *testing.T, _ extensionsv1beta1.SandboxClaim, pod string) {
	ctx := within(t, time.Minute)
	var p corev1.Pod
	require.NoError(t, k8s.Get(ctx, client.ObjectKey{Namespace: namespace, Name: pod}, &p))
	var node corev1.Node
	require.NoError(t, k8s.Get(ctx, client.ObjectKey{Name: p.Spec.NodeName}, &node))
	taint := corev1.Taint{Key: corev1.TaintNodeUnreachable, Effect: corev1.TaintEffectNoExecute}
	t.Cleanup(func() {
		ctx := within(t, 2*time.Minute)
		eventually(t, time.Minute, "the node is whole again", func() bool {
			var now corev1.Node
			require.NoError(t, k8s.Get(ctx, client.ObjectKeyFromObject(&node), &now))
			var left []corev1.Taint
			for _, other := range now.Spec.Taints {
				if other.Key != taint.Key {
					left = append(left, other)
				}
			}
			now.Spec.Taints = left
			return k8s.Update(ctx, &now) == nil // again if something else was written meanwhile
		})
		awaitBrokerInCluster(t)
	})
	node.Spec.Taints = append(node.Spec.Taints, taint)
	require.NoError(t, k8s.Update(ctx, &node))
}

// makeFor makes an object for as long as a test lasts.
func makeFor(t testing.TB, o client.Object) {
	t.Helper()
	require.NoError(t, k8s.Create(within(t, time.Minute), o))
	t.Cleanup(func() {
		require.NoError(t, client.IgnoreNotFound(k8s.Delete(within(t, time.Minute), o, client.GracePeriodSeconds(0))))
	})
}

// awaitBrokerInCluster waits for the broker that runs in the cluster.
func awaitBrokerInCluster(t *testing.T) {
	t.Helper()
	c := inCluster(t, agentToken())
	eventually(t, 2*time.Minute, "the broker in the cluster answers", func() bool {
		_, err := c.Pools(within(t, 10*time.Second))
		return err == nil
	})
}

// spoiledPool makes an empty warm pool, and the suite's template with something wrong
// in it: each claim starts a pod of its own.
func spoiledPool(t *testing.T, pool string, spoil func(*testing.T, *corev1.PodSpec)) {
	t.Helper()
	poolLike(t, pool, func(pod *corev1.PodSpec) { spoil(t, pod) })
}

// poolLike makes an empty warm pool with a changed template.
func poolLike(t testing.TB, pool string, change func(*corev1.PodSpec)) {
	t.Helper()
	var good extensionsv1beta1.SandboxTemplate
	require.NoError(t, k8s.Get(within(t, time.Minute), client.ObjectKey{Namespace: namespace, Name: warmPool}, &good))
	template := &extensionsv1beta1.SandboxTemplate{ObjectMeta: metav1.ObjectMeta{Name: "e2e-" + pool, Namespace: namespace}, Spec: *good.Spec.DeepCopy()}
	change(&template.Spec.PodTemplate.Spec)
	makeFor(t, template)
	makeFor(t, &extensionsv1beta1.SandboxWarmPool{
		ObjectMeta: metav1.ObjectMeta{Name: template.Name, Namespace: namespace},
		Spec: extensionsv1beta1.SandboxWarmPoolSpec{
			Replicas: new(int32), TemplateRef: extensionsv1beta1.SandboxTemplateRef{Name: template.Name},
		},
	})
}

// quotaFor makes a quota that allows no pod of a priority class, and returns the class.
func quotaFor(t *testing.T) string {
	t.Helper()
	class := &schedulingv1.PriorityClass{ObjectMeta: metav1.ObjectMeta{Name: "e2e-quota"}}
	makeFor(t, class)
	quota := &corev1.ResourceQuota{
		ObjectMeta: metav1.ObjectMeta{Name: class.Name, Namespace: namespace},
		Spec: corev1.ResourceQuotaSpec{
			Hard: corev1.ResourceList{corev1.ResourcePods: resource.MustParse("0")},
			ScopeSelector: &corev1.ScopeSelector{MatchExpressions: []corev1.ScopedResourceSelectorRequirement{{
				ScopeName: corev1.ResourceQuotaScopePriorityClass, Operator: corev1.ScopeSelectorOpIn, Values: []string{class.Name},
			}}},
		},
	}
	makeFor(t, quota)
	eventually(t, 30*time.Second, "the quota is in force", func() bool {
		require.NoError(t, k8s.Get(within(t, 10*time.Second), client.ObjectKeyFromObject(quota), quota))
		return len(quota.Status.Hard) > 0
	})
	return class.Name
}

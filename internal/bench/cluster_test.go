package bench

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/watch"

	sandboxv1beta1 "sigs.k8s.io/agent-sandbox/api/v1beta1"
	extensionsv1beta1 "sigs.k8s.io/agent-sandbox/extensions/api/v1beta1"
)

func pointer[T any](v T) *T { return &v }

// poolPod is a pool's pod with what the ways must have in common.
func poolPod() corev1.PodSpec {
	return corev1.PodSpec{
		RuntimeClassName: pointer("gvisor"), DNSPolicy: corev1.DNSDefault, RestartPolicy: corev1.RestartPolicyNever,
		SecurityContext: &corev1.PodSecurityContext{RunAsNonRoot: pointer(true)}, AutomountServiceAccountToken: pointer(false),
		InitContainers: []corev1.Container{{Name: "runner", Image: "runner"}},
		Containers: []corev1.Container{{
			Name: "sandbox", Image: "sandbox", Command: []string{"/opt/sandbox-runner/sandbox-runner", "serve"}, Args: []string{"-v"},
			Resources:       corev1.ResourceRequirements{Limits: corev1.ResourceList{corev1.ResourceCPU: resource.MustParse("1")}},
			SecurityContext: &corev1.SecurityContext{ReadOnlyRootFilesystem: pointer(true)},
			VolumeMounts:    []corev1.VolumeMount{{Name: "runner", MountPath: "/opt/sandbox-runner"}, {Name: "tmp", MountPath: "/tmp"}},
		}, {Name: "sidecar"}},
		Volumes: []corev1.Volume{{Name: "runner"}, {Name: "tmp"}},
	}
}

func TestJobHasThePoolsPod(t *testing.T) {
	t.Parallel()
	c := &Cluster{}
	c.template.Spec.PodTemplate.Spec = poolPod()
	pod, from := c.jobPod(), poolPod()
	require.Equal(t, from.RuntimeClassName, pod.RuntimeClassName)
	require.Equal(t, from.SecurityContext, pod.SecurityContext)
	require.Len(t, pod.Containers, 1)
	require.Equal(t, "sandbox", pod.Containers[0].Image)
	require.Equal(t, from.Containers[0].Resources, pod.Containers[0].Resources)
	require.Equal(t, from.Containers[0].SecurityContext, pod.Containers[0].SecurityContext)
	require.Equal(t, []string{"python3", "-c", "print(1+1)"}, pod.Containers[0].Command)
	require.Empty(t, pod.InitContainers)
}

// agent-sandbox's client is measured in a sandbox like ours: only the program that
// waits in it is another.
func TestPeerHasThePoolsPod(t *testing.T) {
	t.Parallel()
	from := poolPod()
	got := peerPod(from, "with-sandboxd")
	want := poolPod()
	want.InitContainers = nil
	want.Containers = want.Containers[:1]
	want.Containers[0].Image, want.Containers[0].Command, want.Containers[0].Args = "with-sandboxd", []string{sandboxdPath}, nil
	want.Containers[0].VolumeMounts = want.Containers[0].VolumeMounts[1:]
	want.Volumes = want.Volumes[1:]
	require.Equal(t, want, got)
	require.Equal(t, poolPod(), from, "the pool's template stays as it is")

	from.Containers[0].Command = nil // the image's own program
	require.Len(t, peerPod(from, "x").Volumes, 2)
}

func TestRuntimeClass(t *testing.T) {
	t.Parallel()
	c := &Cluster{}
	require.Empty(t, c.RuntimeClass())
	c.template.Spec.PodTemplate.Spec = poolPod()
	require.Equal(t, "gvisor", c.RuntimeClass())
}

func TestNamesAreNotGivenTwice(t *testing.T) {
	t.Parallel()
	c := &Cluster{own: "sandbox-broker-bench-abc12"}
	require.Equal(t, "bench-abc12-1", c.name("bench"))
	require.Equal(t, "call-abc12-2", c.name("call"))
}

func TestClaimHasAnEndOfItsOwn(t *testing.T) {
	t.Parallel()
	c := &Cluster{own: "sandbox-broker-bench-abc12", namespace: "sandboxes", warmPool: "python", claimLife: time.Hour}
	claim := c.newClaim()
	require.Equal(t, "python", claim.Spec.WarmPoolRef.Name)
	require.Equal(t, c.own, claim.Labels[labelRun], "Close finds it")
	require.WithinDuration(t, time.Now().Add(time.Hour), claim.Spec.Lifecycle.ShutdownTime.Time, time.Minute, "it goes even if this process is killed")
	require.Equal(t, extensionsv1beta1.ShutdownPolicyDelete, claim.Spec.Lifecycle.ShutdownPolicy)
}

// events is a watch that brings these and ends.
func events(all ...watch.Event) watch.Interface {
	w := watch.NewFakeWithChanSize(len(all), false)
	for _, e := range all {
		w.Action(e.Type, e.Object)
	}
	w.Stop()
	return w
}

func claimThatIs(status metav1.ConditionStatus) *extensionsv1beta1.SandboxClaim {
	c := &extensionsv1beta1.SandboxClaim{}
	c.Status.SandboxStatus.Name = "python-x1"
	c.Status.Conditions = []metav1.Condition{{Type: string(sandboxv1beta1.SandboxConditionReady), Status: status}}
	return c
}

func TestBound(t *testing.T) {
	t.Parallel()
	ready, not := claimThatIs(metav1.ConditionTrue), claimThatIs(metav1.ConditionFalse)
	pod, err := bound(t.Context(), events(watch.Event{Type: watch.Added, Object: &extensionsv1beta1.SandboxClaim{}},
		watch.Event{Type: watch.Modified, Object: not}, watch.Event{Type: watch.Modified, Object: ready}))
	require.NoError(t, err)
	require.Equal(t, "python-x1", pod)
	_, err = bound(t.Context(), events(watch.Event{Type: watch.Modified, Object: not}))
	require.ErrorContains(t, err, "the watch of a claim ended")
	_, err = bound(t.Context(), events(watch.Event{Type: watch.Deleted, Object: ready}))
	require.ErrorContains(t, err, "was deleted")
	_, err = bound(t.Context(), events(watch.Event{Type: watch.Error, Object: &metav1.Status{Message: "too old"}}))
	require.ErrorContains(t, err, "too old")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = bound(ctx, watch.NewFake())
	require.ErrorIs(t, err, context.Canceled)
}

func TestStarted(t *testing.T) {
	t.Parallel()
	at := func(phase corev1.PodPhase) runtime.Object {
		return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "call-1-x"}, Status: corev1.PodStatus{Phase: phase}}
	}
	pod, err := started(t.Context(), events(watch.Event{Type: watch.Added, Object: at("")},
		watch.Event{Type: watch.Modified, Object: at(corev1.PodPending)}, watch.Event{Type: watch.Modified, Object: at(corev1.PodSucceeded)}))
	require.NoError(t, err)
	require.Equal(t, "call-1-x", pod)
	_, err = started(t.Context(), events())
	require.ErrorContains(t, err, "ended")
	_, err = started(t.Context(), events(watch.Event{Type: watch.Error, Object: &metav1.Status{Message: "too old"}}))
	require.ErrorContains(t, err, "too old")
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = started(ctx, watch.NewFake())
	require.ErrorIs(t, err, context.Canceled)
}

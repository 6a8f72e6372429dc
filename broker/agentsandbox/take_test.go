package agentsandbox

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// notReadyFor requires the error that ends a take for everyone in the queue.
func notReadyFor(t *testing.T, err error, reason string) {
	t.Helper()
	require.ErrorIs(t, err, wire.ErrNotReady)
	require.Equal(t, reason, wire.AsError(err).Reason)
}

func waiting(name, reason string) corev1.ContainerStatus {
	return corev1.ContainerStatus{Name: name, State: corev1.ContainerState{
		Waiting: &corev1.ContainerStateWaiting{Reason: reason, Message: "told"},
	}}
}

func initContainer(st corev1.ContainerStatus) podOption {
	return func(p *corev1.Pod) { p.Status.InitContainerStatuses = append(p.Status.InitContainerStatuses, st) }
}

func TestWaitsThatDoNotPass(t *testing.T) {
	t.Parallel()
	for reason, want := range map[string]string{
		"ErrImagePull": "image_error", "ImagePullBackOff": "image_error", "InvalidImageName": "image_error",
		"ErrImageNeverPull": "image_error", "ImageInspectError": "image_error", "RegistryUnavailable": "image_error",
		"CreateContainerConfigError": "configuration", "CreateContainerError": "configuration", "RunContainerError": "configuration",
	} {
		for place, pod := range map[string]*corev1.Pod{
			"init": podWith(phase(corev1.PodPending), initContainer(waiting("c", reason)), container(waiting("sandbox", "PodInitializing"))),
			"main": podWith(phase(corev1.PodPending), container(waiting("c", reason))),
			"last": podWith(phase(corev1.PodPending), initContainer(corev1.ContainerStatus{State: ended("Completed", 0)}), running(), container(waiting("c", reason))),
		} {
			t.Run(reason+" "+place, func(t *testing.T) {
				t.Parallel()
				err := hopeless(pod)
				notReadyFor(t, err, want)
				require.ErrorContains(t, err, "container c: "+reason+": told")
			})
		}
	}
}

func TestAPodNoNodeTakes(t *testing.T) {
	t.Parallel()
	err := hopeless(podWith(phase(corev1.PodPending), condition(corev1.PodScheduled, corev1.ConditionFalse, "Unschedulable", "0/3 nodes are available")))
	notReadyFor(t, err, "unschedulable")
	require.ErrorContains(t, err, "0/3 nodes are available")
}

// A dead pod is bad luck: the next take may succeed, so the queue must not be
// told that waiting is in vain.
func TestAPodThatDiedBeforeItsUse(t *testing.T) {
	t.Parallel()
	for name, pod := range map[string]*corev1.Pod{
		"out of memory": podWith(nowEnded("OOMKilled", 137)),
		"evicted":       podWith(status("Evicted", "told"), phase(corev1.PodFailed)),
		"deleted":       podWith(running(), deleted()),
		"ended":         podWith(nowEnded("Error", 1)),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, _ := fateOf(pod)
			err := hopeless(pod)
			require.ErrorContains(t, err, "died before it was used: "+f.Message)
			require.Nil(t, wire.AsError(err))
		})
	}
}

func TestAPodWithHope(t *testing.T) {
	t.Parallel()
	for name, pod := range map[string]*corev1.Pod{
		"new":                       {},
		"not scheduled yet":         podWith(phase(corev1.PodPending), condition(corev1.PodScheduled, corev1.ConditionFalse, "SchedulingGated", "")),
		"scheduled":                 podWith(phase(corev1.PodPending), condition(corev1.PodScheduled, corev1.ConditionTrue, "Unschedulable", "of old")),
		"another condition says so": podWith(phase(corev1.PodPending), condition("example.com/Gate", corev1.ConditionFalse, "Unschedulable", "")),
		"being pulled":              podWith(phase(corev1.PodPending), container(waiting("sandbox", "ContainerCreating"))),
		"in its init containers":    podWith(phase(corev1.PodPending), initContainer(runs()), container(waiting("sandbox", "PodInitializing"))),
		"waiting without a reason":  podWith(phase(corev1.PodPending), container(waiting("sandbox", ""))),
		"running and not yet ready": podWith(running(), condition(corev1.PodReady, corev1.ConditionFalse, "ContainersNotReady", "")),
		"ready":                     podWith(running(), condition(corev1.PodReady, corev1.ConditionTrue, "", "")),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.NoError(t, hopeless(pod))
		})
	}
}

func runs() corev1.ContainerStatus {
	return corev1.ContainerStatus{State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}}
}

func TestWhenAPodIsReady(t *testing.T) {
	t.Parallel()
	ready := condition(corev1.PodReady, corev1.ConditionTrue, "", "")
	for name, tt := range map[string]struct {
		pod  *corev1.Pod
		want bool
	}{
		"running and ready":           {podWith(ready), true},
		"with other conditions first": {podWith(condition(corev1.PodScheduled, corev1.ConditionFalse, "", ""), ready), true},
		"running, nothing said":       {podWith(), false},
		"running, not ready":          {podWith(condition(corev1.PodReady, corev1.ConditionFalse, "", "")), false},
		"running, not known":          {podWith(condition(corev1.PodReady, corev1.ConditionUnknown, "", "")), false},
		"containers ready alone":      {podWith(condition(corev1.ContainersReady, corev1.ConditionTrue, "", "")), false},
		"pending with an old sign":    {podWith(phase(corev1.PodPending), ready), false},
		"ended with an old sign":      {podWith(phase(corev1.PodSucceeded), ready), false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			require.Equal(t, tt.want, podReady(tt.pod))
		})
	}
}

func TestRefusedClaims(t *testing.T) {
	t.Parallel()
	claims := schema.GroupResource{Group: "extensions.agents.x-k8s.io", Resource: "sandboxclaims"}
	kind := schema.GroupKind{Group: claims.Group, Kind: "SandboxClaim"}
	for name, tt := range map[string]struct {
		err   error
		final bool
	}{
		"not allowed":              {apierrors.NewForbidden(claims, "sbx-1", errors.New("no rights")), true},
		"not valid":                {apierrors.NewInvalid(kind, "sbx-1", nil), true},
		"no such namespace":        {apierrors.NewNotFound(schema.GroupResource{Resource: "namespaces"}, "sandboxes"), true},
		"no such kind":             {&meta.NoKindMatchError{GroupKind: kind, SearchedVersions: []string{"v1beta1"}}, true},
		"not allowed, wrapped":     {fmt.Errorf("posting: %w", apierrors.NewForbidden(claims, "sbx-1", nil)), true},
		"the name is taken":        {apierrors.NewAlreadyExists(claims, "sbx-1"), false},
		"too many requests":        {apierrors.NewTooManyRequests("slow down", 1), false},
		"the API server is tired":  {apierrors.NewServerTimeout(claims, "create", 1), false},
		"the API server is broken": {apierrors.NewInternalError(errors.New("etcd")), false},
		"nobody answers":           {errors.New("connection refused"), false},
		"the caller has left":      {context.Canceled, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			err := createError(tt.err)
			require.ErrorContains(t, err, tt.err.Error())
			if tt.final {
				notReadyFor(t, err, "configuration")
				return
			}
			require.Nil(t, wire.AsError(err))
			require.ErrorIs(t, err, tt.err)
		})
	}
}

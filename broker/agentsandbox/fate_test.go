package agentsandbox

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/sandbox-broker/sandbox-broker/broker"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// A podOption is one thing that may be said of a pod.
type podOption func(*corev1.Pod)

// podWith is a running pod with these signs on it.
func podWith(options ...podOption) *corev1.Pod {
	pod := &corev1.Pod{Status: corev1.PodStatus{Phase: corev1.PodRunning}}
	for _, o := range options {
		o(pod)
	}
	return pod
}

func container(st corev1.ContainerStatus) podOption {
	return func(p *corev1.Pod) { p.Status.ContainerStatuses = append(p.Status.ContainerStatuses, st) }
}

func running() podOption {
	return container(corev1.ContainerStatus{Name: "sandbox", Ready: true, State: corev1.ContainerState{Running: &corev1.ContainerStateRunning{}}})
}

func ended(reason string, code int32) corev1.ContainerState {
	return corev1.ContainerState{Terminated: &corev1.ContainerStateTerminated{Reason: reason, ExitCode: code}}
}

func nowEnded(reason string, code int32) podOption {
	return container(corev1.ContainerStatus{State: ended(reason, code)})
}

func onceEnded(reason string, code int32) podOption {
	return container(corev1.ContainerStatus{
		State:                corev1.ContainerState{Running: &corev1.ContainerStateRunning{}},
		LastTerminationState: ended(reason, code),
	})
}

func condition(kind corev1.PodConditionType, status corev1.ConditionStatus, reason, message string) podOption {
	return func(p *corev1.Pod) {
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: kind, Status: status, Reason: reason, Message: message})
	}
}

func disrupted(reason string) podOption {
	return condition(corev1.DisruptionTarget, corev1.ConditionTrue, reason, "told")
}

func deleted() podOption {
	return func(p *corev1.Pod) { p.DeletionTimestamp = &metav1.Time{Time: time.Unix(1, 0)} }
}

func phase(ph corev1.PodPhase) podOption { return func(p *corev1.Pod) { p.Status.Phase = ph } }

func status(reason, message string) podOption {
	return func(p *corev1.Pod) { p.Status.Reason, p.Status.Message = reason, message }
}

func TestTheFateOfAPod(t *testing.T) {
	t.Parallel()
	oom := broker.Fate{Reason: wire.ReasonOOM, Message: "the sandbox exceeded its memory limit"}
	lost := func(c wire.Cause, message string) broker.Fate {
		return broker.Fate{Reason: wire.ReasonLost, Cause: c, Message: message}
	}
	for name, tt := range map[string]struct {
		pod  *corev1.Pod
		want broker.Fate
	}{
		"its container was killed for its memory":      {podWith(nowEnded("OOMKilled", 137)), oom},
		"it was, and has been restarted":               {podWith(onceEnded("OOMKilled", 137)), oom},
		"it was, and the restarted one has ended too":  {podWith(container(corev1.ContainerStatus{State: ended("Error", 1), LastTerminationState: ended("OOMKilled", 137)})), oom},
		"the second container was killed for it":       {podWith(running(), nowEnded("OOMKilled", 137)), oom},
		"the second one was, after the first had gone": {podWith(nowEnded("Completed", 0), nowEnded("OOMKilled", 137)), oom},
		"out of memory says more than the deletion":    {podWith(nowEnded("OOMKilled", 137), deleted()), oom},
		"it says more than a disruption":               {podWith(disrupted("EvictionByEvictionAPI"), nowEnded("OOMKilled", 137)), oom},
		"it says more than an eviction":                {podWith(status("Evicted", "The node was low on memory"), nowEnded("OOMKilled", 137), phase(corev1.PodFailed)), oom},

		"preempted":                            {podWith(disrupted("PreemptionByScheduler")), lost(wire.CausePreempted, "PreemptionByScheduler: told")},
		"its node was tainted":                 {podWith(disrupted("DeletionByTaintManager")), lost(wire.CauseNodeLost, "DeletionByTaintManager: told")},
		"its node is no more":                  {podWith(disrupted("DeletionByPodGC")), lost(wire.CauseNodeLost, "DeletionByPodGC: told")},
		"evicted by the API":                   {podWith(disrupted("EvictionByEvictionAPI")), lost(wire.CauseEvicted, "EvictionByEvictionAPI: told")},
		"terminated by the kubelet":            {podWith(disrupted("TerminationByKubelet")), lost(wire.CauseEvicted, "TerminationByKubelet: told")},
		"disrupted for a reason of the future": {podWith(disrupted("Whim")), lost(wire.CauseEvicted, "Whim: told")},
		"a disruption says more than the deletion, which it causes": {
			podWith(disrupted("PreemptionByScheduler"), deleted(), nowEnded("Error", 143)), lost(wire.CausePreempted, "PreemptionByScheduler: told"),
		},
		"a disruption that is another condition's neighbour": {
			podWith(condition(corev1.PodReady, corev1.ConditionTrue, "", ""), disrupted("DeletionByPodGC")), lost(wire.CauseNodeLost, "DeletionByPodGC: told"),
		},

		"evicted by an older kubelet": {podWith(status("Evicted", "disk pressure"), phase(corev1.PodFailed)), lost(wire.CauseEvicted, "disk pressure")},
		"its node does not answer":    {podWith(status("NodeLost", "node a is gone"), deleted()), lost(wire.CauseNodeLost, "node a is gone")},

		"deleted":                           {podWith(running(), deleted()), lost(wire.CauseDeleted, "the pod was deleted")},
		"deleted, and so its process ended": {podWith(nowEnded("Error", 143), deleted(), phase(corev1.PodFailed)), lost(wire.CauseDeleted, "the pod was deleted")},

		"its first process was killed":    {podWith(nowEnded("Error", 137)), lost(wire.CauseRunnerKilled, "the sandbox's first process ended (Error, exit code 137)")},
		"it ended by itself":              {podWith(nowEnded("Completed", 0), phase(corev1.PodSucceeded)), lost(wire.CauseRunnerKilled, "the sandbox's first process ended (Completed, exit code 0)")},
		"it was killed, and another runs": {podWith(onceEnded("Error", 9)), lost(wire.CauseRunnerKilled, "the sandbox's first process ended (Error, exit code 9)")},
		"failed, and nobody says why":     {podWith(phase(corev1.PodFailed)), lost(wire.CauseRunnerKilled, "the pod has ended (Failed)")},
		"succeeded, and nobody says how":  {podWith(phase(corev1.PodSucceeded)), lost(wire.CauseRunnerKilled, "the pod has ended (Succeeded)")},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, dead := fateOf(tt.pod)
			require.True(t, dead)
			require.Equal(t, tt.want, f)
		})
	}
}

func TestAPodThatLives(t *testing.T) {
	t.Parallel()
	for name, pod := range map[string]*corev1.Pod{
		"of which nothing is known yet":      {},
		"pending":                            podWith(phase(corev1.PodPending)),
		"running":                            podWith(running(), condition(corev1.PodReady, corev1.ConditionTrue, "", "")),
		"running and not ready":              podWith(running(), condition(corev1.PodReady, corev1.ConditionFalse, "ContainersNotReady", "")),
		"whose node is out of reach for now": podWith(running(), phase(corev1.PodUnknown)),
		"that a disruption has passed by":    podWith(running(), condition(corev1.DisruptionTarget, corev1.ConditionFalse, "PreemptionByScheduler", "")),
		"with a status nobody knows":         podWith(running(), status("Rescheduled", "")),
		"whose init container has ended": podWith(running(), func(p *corev1.Pod) {
			p.Status.InitContainerStatuses = []corev1.ContainerStatus{{State: ended("Completed", 0)}}
		}),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f, dead := fateOf(pod)
			require.False(t, dead, "%+v", f)
			require.Zero(t, f)
		})
	}
}

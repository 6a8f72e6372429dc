package agentsandbox

import (
	"fmt"

	corev1 "k8s.io/api/core/v1"

	"github.com/sandbox-broker/sandbox-broker/broker"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// Reasons that Kubernetes gives as text only: kubelet's of a terminated
// container and of a failed pod, and the node controller's.
const (
	reasonOOMKilled = "OOMKilled"
	reasonEvicted   = "Evicted"
	reasonNodeLost  = "NodeLost"
)

// disruptions are the reasons of a pod's DisruptionTarget condition
// (kubernetes.io, "Pod disruption conditions"), with what they mean here.
var disruptions = map[string]wire.Cause{
	corev1.PodReasonPreemptionByScheduler: wire.CausePreempted,
	"DeletionByTaintManager":              wire.CauseNodeLost,
	"DeletionByPodGC":                     wire.CauseNodeLost,
	"EvictionByEvictionAPI":               wire.CauseEvicted,
	corev1.PodReasonTerminationByKubelet:  wire.CauseEvicted,
}

// fateOf reads from a pod whether, and how, the sandbox in it has died. The most
// telling sign wins: a container killed for its memory says more than the
// deletion of its pod.
func fateOf(pod *corev1.Pod) (broker.Fate, bool) {
	ended := terminated(pod)
	if ended != nil && ended.Reason == reasonOOMKilled {
		return broker.Fate{Reason: wire.ReasonOOM, Message: "the sandbox exceeded its memory limit"}, true
	}
	lost := func(c wire.Cause, format string, args ...any) (broker.Fate, bool) {
		return broker.Fate{Reason: wire.ReasonLost, Cause: c, Message: fmt.Sprintf(format, args...)}, true
	}
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.DisruptionTarget && c.Status == corev1.ConditionTrue {
			cause, ok := disruptions[c.Reason]
			if !ok {
				cause = wire.CauseEvicted
			}
			return lost(cause, "%s: %s", c.Reason, c.Message)
		}
	}
	switch pod.Status.Reason {
	case reasonEvicted:
		return lost(wire.CauseEvicted, "%s", pod.Status.Message)
	case reasonNodeLost:
		return lost(wire.CauseNodeLost, "%s", pod.Status.Message)
	}
	switch {
	case !pod.DeletionTimestamp.IsZero():
		return lost(wire.CauseDeleted, "the pod was deleted")
	case ended != nil:
		return lost(wire.CauseRunnerKilled, "the sandbox's first process ended (%s, exit code %d)", ended.Reason, ended.ExitCode)
	case pod.Status.Phase == corev1.PodFailed || pod.Status.Phase == corev1.PodSucceeded:
		return lost(wire.CauseRunnerKilled, "the pod has ended (%s)", pod.Status.Phase)
	}
	return broker.Fate{}, false
}

// terminated returns how a container of the sandbox ended, now or, had it been
// restarted, before: the first that was killed for its memory, else the first
// that ended; nil while all run.
func terminated(pod *corev1.Pod) *corev1.ContainerStateTerminated {
	var first *corev1.ContainerStateTerminated
	for _, st := range pod.Status.ContainerStatuses {
		for _, t := range []*corev1.ContainerStateTerminated{st.State.Terminated, st.LastTerminationState.Terminated} {
			if t != nil && t.Reason == reasonOOMKilled {
				return t
			}
			if first == nil {
				first = t
			}
		}
	}
	return first
}

package bench

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

func TestIdlePodsDifferInTheirProgram(t *testing.T) {
	t.Parallel()
	c := &Cluster{own: "sandbox-broker-bench-abc12"}
	c.template.Spec.PodTemplate.Spec = poolPod()
	require.Equal(t, poolPod(), c.idlePod(nil).Spec, "a sandbox of the pool")
	want := poolPod()
	want.Containers[0].Command, want.Containers[0].Args = []string{"sleep", "infinity"}, nil
	require.Equal(t, want, c.idlePod([]string{"sleep", "infinity"}).Spec)
	require.Equal(t, poolPod(), c.template.Spec.PodTemplate.Spec, "the pool's template stays as it is")
}

func TestSummary(t *testing.T) {
	t.Parallel()
	s, err := parseSummary([]byte(`{"node": {}, "pods": [
		{"podRef": {"name": "a", "uid": "u1"}, "memory": {"time": "2026-01-02T03:04:05Z", "usageBytes": 3, "workingSetBytes": 2}},
		{"podRef": {"name": "b", "uid": "u2"}}]}`))
	require.NoError(t, err)
	set, at := s.workingSet("u1")
	require.InDelta(t, 2, set, 0)
	require.Equal(t, time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), at)
	for _, unknown := range []string{"u2", "u3"} {
		_, at = s.workingSet(types.UID(unknown))
		require.Zero(t, at)
	}
	_, err = parseSummary([]byte("<html>"))
	require.ErrorContains(t, err, "not the JSON")
}

func TestReadySince(t *testing.T) {
	t.Parallel()
	at := metav1.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	pod := &corev1.Pod{}
	_, ready := readySince(pod)
	require.False(t, ready)
	pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse, LastTransitionTime: at}}
	_, ready = readySince(pod)
	require.False(t, ready)
	pod.Status.Conditions[0].Status = corev1.ConditionTrue
	since, ready := readySince(pod)
	require.True(t, ready)
	require.Equal(t, at.Time, since)
}

package bench

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

const (
	// memoryPods is how many pods of each kind are looked at.
	memoryPods = 3
	// memoryRest is how long they idle before.
	memoryRest = 3 * time.Second
	// memoryTimeout bounds the whole of it. The kubelet looks every 10 s or so.
	memoryTimeout = 90 * time.Second
	// memoryPause lies between two looks.
	memoryPause = time.Second
)

// IdleMemory is what an idle sandbox of the pool holds in the node's memory, in 10⁶
// bytes: as it is, and with a program that sleeps in the runner's place. The difference
// is the runner. It is what the kubelet counts for the whole pod, its working set: gVisor
// tells the sandbox itself another number, in large pieces that are mostly not there.
func (c *Cluster) IdleMemory(ctx context.Context) (runner, sleeper float64, err error) {
	ctx, cancel := context.WithTimeout(ctx, memoryTimeout)
	defer cancel()
	var pods []*corev1.Pod
	for range memoryPods {
		pods = append(pods, c.idlePod(nil), c.idlePod([]string{"sleep", "infinity"}))
	}
	for i, pod := range pods {
		if pods[i], err = c.core.Pods(c.own).Create(ctx, pod, metav1.CreateOptions{}); err != nil {
			return 0, 0, fmt.Errorf("bench: creating a pod that idles: %w", err)
		}
	}
	idle, err := c.workingSets(ctx, pods)
	if err != nil {
		return 0, 0, err
	}
	for i, pod := range pods {
		if i%2 == 0 {
			runner += idle[pod.UID] / memoryPods
		} else {
			sleeper += idle[pod.UID] / memoryPods
		}
		err = errors.Join(err, c.core.Pods(c.own).Delete(ctx, pod.Name, metav1.DeleteOptions{}))
	}
	if err != nil {
		return 0, 0, fmt.Errorf("bench: deleting a pod that idled: %w", err)
	}
	return runner / 1e6, sleeper / 1e6, nil
}

// idlePod is one of the pool's sandboxes; command, if there is one, in the runner's place.
func (c *Cluster) idlePod(command []string) *corev1.Pod {
	spec := *c.template.Spec.PodTemplate.Spec.DeepCopy()
	if command != nil {
		spec.Containers[0].Command, spec.Containers[0].Args = command, nil
	}
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: c.name("idle")}, Spec: spec}
}

// workingSets waits until the kubelet has looked at pods that had idled for a while, and
// returns what it saw, in bytes.
func (c *Cluster) workingSets(ctx context.Context, pods []*corev1.Pod) (map[types.UID]float64, error) {
	pause := time.NewTicker(memoryPause)
	defer pause.Stop()
	for {
		seen, err := c.look(ctx, pods)
		if err != nil || len(seen) == len(pods) {
			return seen, err
		}
		select {
		case <-pause.C:
		case <-ctx.Done():
			return nil, fmt.Errorf("bench: waiting for the kubelet's word on the memory of pods that idle: %w", ctx.Err())
		}
	}
}

// look asks once. Pods that have not idled long enough are not in the answer.
func (c *Cluster) look(ctx context.Context, pods []*corev1.Pod) (map[types.UID]float64, error) {
	summaries := map[string]*summary{} // by node
	seen := map[types.UID]float64{}
	for _, pod := range pods {
		now, err := c.core.Pods(c.own).Get(ctx, pod.Name, metav1.GetOptions{})
		if err != nil {
			return nil, fmt.Errorf("bench: looking at a pod that idles: %w", err)
		}
		since, ready := readySince(now)
		if !ready {
			return seen, nil
		}
		node := now.Spec.NodeName
		if summaries[node] == nil {
			text, err := c.core.RESTClient().Get().Resource("nodes").Name(node).SubResource("proxy").Suffix("stats/summary").DoRaw(ctx)
			if err != nil {
				return nil, fmt.Errorf("bench: asking the kubelet of %s for the memory of its pods: %w", node, err)
			}
			if summaries[node], err = parseSummary(text); err != nil {
				return nil, err
			}
		}
		if set, at := summaries[node].workingSet(now.UID); at.After(since.Add(memoryRest)) {
			seen[now.UID] = set
		}
	}
	return seen, nil
}

func readySince(pod *corev1.Pod) (time.Time, bool) {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
			return c.LastTransitionTime.Time, true
		}
	}
	return time.Time{}, false
}

// summary is what is used of the kubelet's /stats/summary
// (k8s.io/kubelet/pkg/apis/stats/v1alpha1).
type summary struct {
	Pods []struct {
		Ref struct {
			UID types.UID `json:"uid"`
		} `json:"podRef"`
		Memory struct {
			Time       time.Time `json:"time"`
			WorkingSet float64   `json:"workingSetBytes"`
		} `json:"memory"`
	} `json:"pods"`
}

func parseSummary(text []byte) (*summary, error) {
	var s summary
	if err := json.Unmarshal(text, &s); err != nil {
		return nil, fmt.Errorf("bench: the kubelet's summary is not the JSON it must be: %w", err)
	}
	return &s, nil
}

// workingSet is a pod's, in bytes, and when that was so; the zero time: it is not known.
func (s *summary) workingSet(pod types.UID) (bytes float64, at time.Time) {
	for _, p := range s.Pods {
		if p.Ref.UID == pod && p.Memory.WorkingSet > 0 {
			return p.Memory.WorkingSet, p.Memory.Time
		}
	}
	return 0, time.Time{}
}

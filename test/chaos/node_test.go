//go:build e2e

package chaos

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	policyv1 "k8s.io/api/policy/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"
)

// evictedWithin bounds how long it is tried to evict a node's sandboxes, and how long
// is waited for them to be gone.
const evictedWithin = 30 * time.Second

// restart kills a process of the local cluster, by the cluster's own record, and has
// it started again.
func (s *suite) restart(ctx context.Context, name string) error {
	_, err := s.restarted(ctx, name)
	return err
}

// restarted is restart, and returns what was said.
func (s *suite) restarted(ctx context.Context, name string) (said string, err error) {
	cmd := exec.CommandContext(ctx, filepath.Join(root(), "bin", "cluster"), "restart", name)
	cmd.Dir = s.project
	text, err := cmd.CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("bin/cluster restart %s: %w: %s", name, err, shorten(string(text)))
	}
	return string(text), s.recovered(ctx)
}

// hungShim finds, in what `bin/cluster restart containerd` says, the pods whose shims hung
// after it and were ended.
var hungShim = regexp.MustCompile(`a shim that hung, of pod (\S+)`)

// restartContainerd is on the pods whose shims hung, which it returns: that is gVisor's
// doing, and a fault on them like any other.
func (s *suite) restartContainerd(ctx context.Context) (hung []string, what string, err error) {
	names := map[string]string{} // of pods, by UID
	note := func() error {
		var pods corev1.PodList
		if err := s.k8s.List(ctx, &pods, client.InNamespace(namespace)); err != nil {
			return fmt.Errorf("listing the pods: %w", err)
		}
		for i := range pods.Items {
			names[string(pods.Items[i].UID)] = pods.Items[i].Name
		}
		return nil
	}
	if err := note(); err != nil {
		return nil, "", err
	}
	said, err := s.restarted(ctx, "containerd")
	err = errors.Join(err, note())
	for _, m := range hungShim.FindAllStringSubmatch(said, -1) {
		hung = append(hung, names[m[1]])
	}
	return hung, fmt.Sprintf("containerd, %d shims hung", len(hung)), err
}

// restartKubelet is on the pods that were not ready yet, which it returns: with the kubelet
// ends its call that starts a container, and containerd ends a container whose start was
// given up, also if it runs by then ("StartError").
func (s *suite) restartKubelet(ctx context.Context) (starting []string, what string, err error) {
	var pods corev1.PodList
	if err := s.k8s.List(ctx, &pods, client.InNamespace(namespace)); err != nil {
		return nil, "", fmt.Errorf("listing the pods: %w", err)
	}
	for i := range pods.Items {
		if _, ready := readySince(&pods.Items[i]); !ready {
			starting = append(starting, pods.Items[i].Name)
		}
	}
	return starting, fmt.Sprintf("kubelet, %d pods were starting", len(starting)), s.restart(ctx, "kubelet")
}

// readySince tells when a pod became ready, if it is.
func readySince(pod *corev1.Pod) (at time.Time, ready bool) {
	for _, c := range pod.Status.Conditions {
		if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue {
			return c.LastTransitionTime.Time, true
		}
	}
	return at, false
}

// drain cordons the node, evicts every sandbox on it, and uncordons it. It returns the pods
// that were on it.
func (s *suite) drain(ctx context.Context) (evicted []string, what string, err error) {
	var nodes corev1.NodeList
	if err := s.k8s.List(ctx, &nodes); err != nil || len(nodes.Items) != 1 {
		return nil, "", fmt.Errorf("%d nodes: %w", len(nodes.Items), err)
	}
	node := nodes.Items[0].Name
	if err := s.cordon(ctx, node, true); err != nil {
		return nil, "", err
	}
	evicted, err = s.evictAll(ctx, node)
	if err := errors.Join(err, s.cordon(ctx, node, false)); err != nil {
		return evicted, node, err
	}
	return evicted, fmt.Sprintf("%s, %d pods", node, len(evicted)), s.serves(ctx, time.Now())
}

// serves waits until a sandbox is ready that has become so since a moment. The warm pool
// need not become full: programs take its sandboxes as fast as they come.
func (s *suite) serves(ctx context.Context, since time.Time) error {
	return until(ctx, 2*time.Minute, "a sandbox is ready", func() error {
		var pods corev1.PodList
		if err := s.k8s.List(ctx, &pods, client.InNamespace(namespace)); err != nil {
			return err
		}
		for i := range pods.Items {
			if at, ready := readySince(&pods.Items[i]); ready && at.After(since) {
				return nil
			}
		}
		return fmt.Errorf("none of %d", len(pods.Items))
	})
}

func (s *suite) cordon(ctx context.Context, node string, unschedulable bool) error {
	n := &corev1.Node{}
	n.Name = node
	patch := fmt.Appendf(nil, `{"spec":{"unschedulable":%t}}`, unschedulable)
	return s.k8s.Patch(ctx, n, client.RawPatch("application/merge-patch+json", patch))
}

// evictAll evicts the sandboxes' pods and waits until they are gone. One that the node
// cannot get rid of does not hold it up for longer than evictedWithin. It returns all that
// it evicted.
func (s *suite) evictAll(ctx context.Context, node string) ([]string, error) {
	evicted := map[string]bool{}
	slow := ""
	err := until(ctx, evictedWithin, "no sandbox is left on "+node, func() error {
		var pods corev1.PodList
		if err := s.k8s.List(ctx, &pods, client.InNamespace(namespace)); err != nil {
			return err
		}
		var going []string
		slow = ""
		for i := range pods.Items {
			pod := &pods.Items[i]
			if pod.Spec.NodeName != node {
				continue
			}
			going = append(going, pod.Name)
			evicted[pod.Name] = true
			if !pod.DeletionTimestamp.IsZero() {
				continue
			}
			if err := s.k8s.SubResource("eviction").Create(ctx, pod, &policyv1.Eviction{}); err != nil && !apierrors.IsNotFound(err) {
				return fmt.Errorf("evicting %s: %w", pod.Name, err)
			}
		}
		if len(going) > 0 {
			slow = strings.Join(going, ", ")
			return fmt.Errorf("still there: %s", slow)
		}
		return nil
	})
	if slow != "" {
		s.t.Logf("the node has not got rid of %s yet", slow)
		err = nil
	}
	return slices.Sorted(maps.Keys(evicted)), err
}

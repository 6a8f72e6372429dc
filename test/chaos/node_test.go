//go:build e2e

package chaos

import (
	"context"
	"fmt"
	"os/exec"
	"path/filepath"
	"regexp"
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

// restartContainerd is on the pods whose shims hung: that is gVisor's doing, and a fault on
// them like any other.
func (s *suite) restartContainerd(ctx context.Context) (targets []string, what string, err error) {
	var pods corev1.PodList
	if err := s.k8s.List(ctx, &pods, client.InNamespace(namespace)); err != nil {
		return nil, "", fmt.Errorf("listing the pods: %w", err)
	}
	claims, err := s.claims(ctx)
	if err != nil {
		return nil, "", err
	}
	said, err := s.restarted(ctx, "containerd")
	for _, m := range hungShim.FindAllStringSubmatch(said, -1) {
		for i := range pods.Items {
			if string(pods.Items[i].UID) != m[1] {
				continue
			}
			for j := range claims {
				if podOf(&claims[j]) == pods.Items[i].Name {
					targets = append(targets, claims[j].Name)
				}
			}
		}
	}
	return targets, fmt.Sprintf("containerd, %d shims hung", len(hungShim.FindAllString(said, -1))), err
}

// drain cordons the node, evicts every sandbox on it, and uncordons it.
func (s *suite) drain(ctx context.Context) (targets []string, what string, err error) {
	var nodes corev1.NodeList
	if err := s.k8s.List(ctx, &nodes); err != nil || len(nodes.Items) != 1 {
		return nil, "", fmt.Errorf("%d nodes: %w", len(nodes.Items), err)
	}
	node := nodes.Items[0].Name
	if err := s.cordon(ctx, node, true); err != nil {
		return nil, "", err
	}
	evicted, err := s.evictAll(ctx, node)
	// A claim may have been given one of the pods just before it went.
	claims, listing := s.claims(ctx)
	for i := range claims {
		if evicted[podOf(&claims[i])] != "" {
			targets = append(targets, claims[i].Name)
		}
	}
	for _, claim := range evicted {
		targets = append(targets, claim)
	}
	for _, again := range []error{err, listing, s.cordon(ctx, node, false)} {
		if again != nil {
			return targets, node, again
		}
	}
	return targets, fmt.Sprintf("%s, %d pods", node, len(evicted)), s.serves(ctx, time.Now())
}

// serves waits until a sandbox is ready that has become so since a moment. The warm pool
// need not become full: programs take its sandboxes as fast as they come.
func (s *suite) serves(ctx context.Context, since time.Time) error {
	return until(ctx, 2*time.Minute, "a sandbox is ready", func() error {
		var pods corev1.PodList
		if err := s.k8s.List(ctx, &pods, client.InNamespace(namespace)); err != nil {
			return err
		}
		for _, pod := range pods.Items {
			for _, c := range pod.Status.Conditions {
				if c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue && c.LastTransitionTime.After(since) {
					return nil
				}
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
// cannot get rid of does not hold it up for longer than evictedWithin. It returns the
// pods with the claims that they were of, "-" for none.
func (s *suite) evictAll(ctx context.Context, node string) (map[string]string, error) {
	evicted := map[string]string{}
	slow := ""
	err := until(ctx, evictedWithin, "no sandbox is left on "+node, func() error {
		var pods corev1.PodList
		if err := s.k8s.List(ctx, &pods, client.InNamespace(namespace)); err != nil {
			return err
		}
		claims, err := s.claimNames(ctx)
		if err != nil {
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
			if name := claims[pod.Labels[claimLabel]]; name != "" {
				evicted[pod.Name] = name
			} else if evicted[pod.Name] == "" {
				evicted[pod.Name] = "-"
			}
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
	return evicted, err
}

// claimLabel is what a pod has of the claim that it was adopted for: its UID.
const claimLabel = "agents.x-k8s.io/claim-uid"

// claimNames are the names of the suite's claims by UID.
func (s *suite) claimNames(ctx context.Context) (map[string]string, error) {
	claims, err := s.claims(ctx)
	names := map[string]string{}
	for i := range claims {
		names[string(claims[i].UID)] = claims[i].Name
	}
	return names, err
}

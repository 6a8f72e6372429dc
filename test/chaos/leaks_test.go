//go:build e2e

package chaos

import (
	"context"
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	sandboxv1beta1 "sigs.k8s.io/agent-sandbox/api/v1beta1"
	extensionsv1beta1 "sigs.k8s.io/agent-sandbox/extensions/api/v1beta1"
)

// claimLabel is what a pod has of the claim that it was adopted for: its UID.
const claimLabel = "agents.x-k8s.io/claim-uid"

const (
	// goroutines and descriptors are the names of a process's metrics.
	goroutines, descriptors = "go_goroutines", "process_open_fds"
	// A broker at rest may have somewhat more of each than it had at first: one more
	// sandbox in stock, connections that are kept for the next request.
	moreGoroutines, moreDescriptors = 40, 12
	// restWithin bounds how long a broker's work goes on after the last program.
	restWithin = 2 * time.Minute
	// goneWithin bounds how long what was deleted may still be there.
	goneWithin = time.Minute
)

// atRest waits until every broker has its stock and nothing else, and reads what it
// has open then: the most of all.
func (s *suite) atRest(ctx context.Context) (map[string]float64, error) {
	if err := until(ctx, time.Minute, "the stock is full", func() error {
		claims, err := s.claims(ctx)
		if err == nil && len(claims) < replicas { // one more if the first was alone for a while
			err = fmt.Errorf("%d claims", len(claims))
		}
		return err
	}); err != nil {
		return nil, err
	}
	most := map[string]float64{}
	for _, b := range s.brokers {
		now, err := b.gauges(ctx, goroutines, descriptors)
		if err != nil {
			return nil, err
		}
		for name, v := range now {
			most[name] = max(most[name], v)
		}
	}
	return most, nil
}

// leftovers looks for what must be gone: first with the brokers still there, then after
// their end.
func (s *suite) leftovers(ctx context.Context, base map[string]float64) {
	s.mu.Lock()
	patience := max(restWithin, time.Until(s.doubtful.Add(s.ttl+30*time.Second)))
	s.mu.Unlock()
	s.left(until(ctx, patience, "no lease is left", func() error { return s.noLease(ctx) }))
	for _, b := range s.brokers {
		s.left(until(ctx, restWithin, b.name+" has no more open than at first", func() error { return s.noMore(ctx, b, base) }))
	}
	if s.patient { // other brokers remove a dead one's after a minute
		s.left(until(ctx, restWithin, "only living brokers hold coordination Leases", func() error { return s.coordination(ctx, replicas) }))
	}
	for _, b := range s.brokers {
		s.left(b.stop())
	}
	s.left(until(ctx, goneWithin, "no claim is left", func() error {
		claims, err := s.claims(ctx)
		return anyLeft(err, namesOf(claims))
	}))
	if s.patient {
		s.left(until(ctx, goneWithin, "no coordination Lease is left", func() error { return s.coordination(ctx, 0) }))
	}
	s.left(until(ctx, 2*goneWithin, "no sandbox or pod is left without its claim", func() error { return s.orphans(ctx) }))
}

// left notes what an error says as left over.
func (s *suite) left(err error) {
	if err == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.evidence.Left = append(s.evidence.Left, err.Error())
}

func anyLeft(err error, names []string) error {
	if err == nil && len(names) > 0 {
		err = fmt.Errorf("there are %s", strings.Join(names, ", "))
	}
	return err
}

func namesOf(claims []extensionsv1beta1.SandboxClaim) []string {
	var names []string
	for i := range claims {
		names = append(names, claims[i].Name)
	}
	return names
}

func (s *suite) noLease(ctx context.Context) error {
	claims, err := s.claims(ctx)
	claims = slices.DeleteFunc(claims, func(c extensionsv1beta1.SandboxClaim) bool { return !isLeased(&c) })
	return anyLeft(err, namesOf(claims))
}

func (s *suite) noMore(ctx context.Context, b *brokerProcess, base map[string]float64) error {
	now, err := b.gauges(ctx, goroutines, descriptors)
	if err != nil {
		return err
	}
	if now[goroutines] > base[goroutines]+moreGoroutines || now[descriptors] > base[descriptors]+moreDescriptors {
		return fmt.Errorf("it has %.0f goroutines and %.0f descriptors; at first there were at most %.0f and %.0f",
			now[goroutines], now[descriptors], base[goroutines], base[descriptors])
	}
	s.t.Logf("%s at rest: %.0f goroutines, %.0f descriptors; at first at most %.0f and %.0f",
		b.name, now[goroutines], now[descriptors], base[goroutines], base[descriptors])
	return nil
}

func (s *suite) coordination(ctx context.Context, most int) error {
	var leases coordinationv1.LeaseList
	err := s.k8s.List(ctx, &leases, client.InNamespace(namespace), client.MatchingLabels{"sandbox-broker.dev/instance": instance})
	if err == nil && len(leases.Items) > most {
		err = fmt.Errorf("there are %d", len(leases.Items))
	}
	return err
}

// orphans are sandboxes and pods that were adopted for a claim that is not there.
//
// A containerd that is killed while it stops a pod may find that pod's shim stuck when
// it is there again, and with it the pod, which then stays Terminating although its
// sandbox has ended. That is the node's matter: such a pod is told, and no leak.
func (s *suite) orphans(ctx context.Context) error {
	var claims extensionsv1beta1.SandboxClaimList
	var sandboxes sandboxv1beta1.SandboxList
	var pods corev1.PodList
	for _, list := range []client.ObjectList{&sandboxes, &pods, &claims} { // claims last: what is younger has one there
		if err := s.k8s.List(ctx, list, client.InNamespace(namespace)); err != nil {
			return err
		}
	}
	known := map[string]bool{}
	for i := range claims.Items {
		known[string(claims.Items[i].UID)] = true
	}
	var names []string
	for i := range sandboxes.Items {
		if o := &sandboxes.Items[i]; orphaned(o, known) {
			names = append(names, "sandbox "+o.Name)
		}
	}
	for i := range pods.Items {
		o := &pods.Items[i]
		switch {
		case !orphaned(o, known):
		case o.DeletionTimestamp.IsZero() || !s.had(RestartContainerd):
			names = append(names, "pod "+o.Name)
		case time.Since(o.DeletionTimestamp.Time) > goneWithin:
			s.t.Logf("the node has not got rid of pod %s since %s", o.Name, o.DeletionTimestamp.Format(time.TimeOnly))
		default:
			names = append(names, "pod "+o.Name+", which is being deleted")
		}
	}
	return anyLeft(nil, names)
}

// had says that a fault of the kind was made.
func (s *suite) had(k FaultKind) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.ContainsFunc(s.evidence.Faults, func(f Fault) bool { return f.Kind == k })
}

func orphaned(o client.Object, claims map[string]bool) bool {
	claim := o.GetLabels()[claimLabel]
	return claim != "" && !claims[claim]
}

// process is what this process, the clients', has open.
type process struct{ goroutines, descriptors int }

func ourselves() process {
	open, _ := os.ReadDir("/proc/self/fd")
	return process{runtime.NumGoroutine(), len(open)}
}

// ownLeftovers looks for what the clients left in this process.
func (s *suite) ownLeftovers(ctx context.Context, before process) {
	const more = 4 // the Kubernetes client keeps a connection
	err := until(ctx, 30*time.Second, "the clients have left nothing", func() error {
		if now := ourselves(); now.goroutines > before.goroutines+more || now.descriptors > before.descriptors+more {
			return fmt.Errorf("%d goroutines and %d descriptors; there were %d and %d", now.goroutines, now.descriptors, before.goroutines, before.descriptors)
		}
		return nil
	})
	if err != nil {
		text := make([]byte, 1<<20)
		s.t.Logf("goroutines:\n%s", text[:runtime.Stack(text, true)])
	}
	s.left(err)
}

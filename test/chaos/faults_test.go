//go:build e2e

package chaos

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	extensionsv1beta1 "sigs.k8s.io/agent-sandbox/extensions/api/v1beta1"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient"
)

// errNoTarget says that there was nothing to strike.
var errNoTarget = errors.New("there is nothing to strike")

// recovery bounds how long it may take until the brokers are ready after a fault.
const recovery = 90 * time.Second

// strikes makes one fault after the other until ctx ends; what was begun is made good.
func (s *suite) strikes(ctx context.Context, d *deck) {
	for {
		step := d.next()
		pause := time.NewTimer(step.After)
		select {
		case <-pause.C:
		case <-ctx.Done():
			pause.Stop()
			return
		}
		s.strike(step)
	}
}

// strike makes a fault, waits until it is made good, and notes both.
func (s *suite) strike(step Step) {
	f := Fault{Step: step, At: time.Now(), Broker: s.brokerOf(step)}
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	targets, what, err := s.make(ctx, step)
	f.Until = time.Now()
	if step.Kind == Drain || step.Kind == RestartContainerd || step.Kind == RestartKubelet {
		f.Pods = targets
	} else {
		f.Targets = targets
	}
	took := f.Until.Sub(f.At).Round(time.Millisecond)
	switch {
	case errors.Is(err, errNoTarget):
		s.t.Logf("%s fault %s: %v", f.At.Format(clock), step, err)
		return
	case err != nil:
		s.problem("fault %s could not be made: %v", step, err)
	}
	s.t.Logf("%s fault %s: %s (%s)", f.At.Format(clock), step, what, took)
	s.mu.Lock()
	defer s.mu.Unlock()
	s.evidence.Faults = append(s.evidence.Faults, f)
}

// one is the broker that a step strikes, if it strikes one.
func (s *suite) one(step Step) *brokerProcess {
	return s.brokers[int(step.Choice*float64(len(s.brokers)))]
}

// brokerOf is its name; empty, if the fault is not on one broker.
func (s *suite) brokerOf(step Step) string {
	switch step.Kind {
	case CutExecs, CutExecsAt, KillBroker:
		return s.one(step).name
	}
	return ""
}

// make makes a fault. It returns the claims it is on, for a fault on sandboxes, or the pods,
// for one on whatever is there, and what it struck.
func (s *suite) make(ctx context.Context, step Step) (targets []string, what string, err error) {
	one := s.one(step)
	switch step.Kind {
	case CutClients:
		s.front.Cut()
		return nil, "all", nil
	case CutClientsAt:
		return nil, fmt.Sprint(s.front.CutAfter(step.Bytes), " connections"), nil
	case CutExecs:
		one.back.Cut()
		return nil, one.name, nil
	case CutExecsAt:
		return nil, fmt.Sprint(one.back.CutAfter(step.Bytes), " connections of ", one.name), nil
	case KillBroker:
		return nil, one.name, s.killBrokers(ctx, step.For, one)
	case KillBrokers:
		return nil, "all", s.killBrokers(ctx, step.For, s.brokers...)
	case StopRunner:
		return s.signalRunner(ctx, step, fmt.Sprintf("kill -STOP 1; sleep %.3f; kill -CONT 1", step.For.Seconds()))
	case KillRunner:
		return s.signalRunner(ctx, step, "kill -KILL 1; sleep 60")
	case DeletePod, DeleteClaim:
		return s.deleteOne(ctx, step)
	case RestartAPIServer:
		return nil, "kube-apiserver", s.restart(ctx, "kube-apiserver")
	case RestartContainerd:
		return s.restartContainerd(ctx)
	case RestartKubelet:
		return s.restartKubelet(ctx)
	case RestartController:
		return nil, "agent-sandbox-controller", s.restart(ctx, "agent-sandbox-controller")
	case Drain:
		return s.drain(ctx)
	}
	return nil, "", fmt.Errorf("no such fault: %s", step.Kind)
}

// killBrokers kills brokers and starts others in their places a while later.
func (s *suite) killBrokers(ctx context.Context, down time.Duration, which ...*brokerProcess) error {
	for _, b := range which {
		if err := b.kill(); err != nil {
			return err
		}
	}
	time.Sleep(down) // that is the fault
	var all errgroup.Group
	for _, b := range which {
		all.Go(b.start)
	}
	err := all.Wait()
	s.aim()
	return errors.Join(err, s.recovered(ctx))
}

// recovered waits until every broker is ready.
func (s *suite) recovered(ctx context.Context) error {
	for _, b := range s.brokers {
		if err := until(ctx, recovery, b.name+" is ready", func() error { return b.ready(ctx) }); err != nil {
			return err
		}
	}
	return nil
}

// signalRunner has a program of a tenant signal the first process of its sandbox.
func (s *suite) signalRunner(ctx context.Context, step Step, script string) ([]string, string, error) {
	l := s.anyLease(step.Choice)
	if l == nil {
		return nil, "", errNoTarget
	}
	id := fmt.Sprintf(ownPrefix+"fault-%d", time.Now().UnixNano())
	cmd := l.Command("sh", "-c", script)
	cmd.ID = id
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	err := cmd.Run(ctx)
	var exit *sandboxclient.ExitError
	switch claim := s.notes.claimOf(id); {
	case claim == "":
		return nil, "", errNoTarget // it did not get there
	case err == nil || errors.As(err, &exit) || isOver(err):
		return []string{claim}, claim, nil
	default:
		return []string{claim}, claim, err
	}
}

func (n *notes) claimOf(exec string) string {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.told[exec].Claim
}

// deleteOne deletes the claim or the pod of a lease.
func (s *suite) deleteOne(ctx context.Context, step Step) ([]string, string, error) {
	claims, err := s.claims(ctx)
	if err != nil {
		return nil, "", err
	}
	var held []extensionsv1beta1.SandboxClaim
	for i := range claims {
		if isLeased(&claims[i]) {
			held = append(held, claims[i])
		}
	}
	if len(held) == 0 {
		return nil, "", errNoTarget
	}
	c := held[int(step.Choice*float64(len(held)))]
	target := []string{c.Name}
	if step.Kind == DeleteClaim {
		return target, c.Name, client.IgnoreNotFound(s.k8s.Delete(ctx, &c))
	}
	pod := &corev1.Pod{}
	pod.Namespace, pod.Name = namespace, c.Status.SandboxStatus.Name
	return target, fmt.Sprint(c.Name, ", pod ", pod.Name), client.IgnoreNotFound(s.k8s.Delete(ctx, pod, client.GracePeriodSeconds(1)))
}

// podOf is the name of the pod that a claim was given.
func podOf(c *extensionsv1beta1.SandboxClaim) string { return c.Status.SandboxStatus.Name }

// shorten keeps the end of a long text.
func shorten(text string) string {
	const most = 400
	text = strings.TrimSpace(text)
	return text[max(0, len(text)-most):]
}

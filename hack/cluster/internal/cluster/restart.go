package cluster

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/sandbox-broker/sandbox-broker/hack/cluster/internal/kube"
	"github.com/sandbox-broker/sandbox-broker/hack/cluster/internal/plan"
)

// reviveEvery is how often it is seen to that a restarted process still runs.
const reviveEvery = time.Second

// Restart kills one component, as a crash would, starts it again, and waits until it
// serves. It is for tests of what the others make of it.
func (c *Cluster) Restart(ctx context.Context, name string) error {
	await, ok := c.restartable()[name]
	if !ok {
		return fmt.Errorf("%q is none of %s", name, strings.Join(slices.Sorted(maps.Keys(c.restartable())), ", "))
	}
	unlock, err := c.attach()
	if err != nil {
		return err
	}
	defer unlock()
	return c.stage(ctx, "restart "+name, func(ctx context.Context) error {
		var between func() error
		if name == containerd {
			between = func() error { return c.endHungShims(ctx) }
		}
		revive, err := c.keeper.Restart(ctx, name, between)
		if err != nil {
			return err
		}
		stop := c.reviving(ctx, revive)
		defer stop()
		return await(ctx)
	})
}

// reviving keeps a process running that ends while what it needs is not there yet:
// kubelet does, as long as containerd is at its own start.
func (c *Cluster) reviving(ctx context.Context, revive func() error) (stop func()) {
	ctx, cancel := context.WithCancel(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(reviveEvery)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				if err := revive(); err != nil {
					c.say("%v", err)
				}
			case <-ctx.Done():
				return
			}
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

// restartable has, for each component that may be restarted by itself, what to wait
// for afterwards.
func (c *Cluster) restartable() map[string]func(context.Context) error {
	return map[string]func(context.Context) error{
		apiServer:  c.awaitAPI,
		containerd: func(ctx context.Context) error { return c.awaitSocket(ctx, c.dirs.ContainerdSocket()) },
		kubelet: func(ctx context.Context) error {
			// The node's own condition may still be of before.
			if err := c.awaitURL(ctx, kubelet, plan.KubeletHealthPort, "/healthz"); err != nil {
				return err
			}
			return c.awaitNode(ctx)
		},
		kubeProxy: func(ctx context.Context) error { return c.awaitURL(ctx, kubeProxy, plan.ProxyHealthPort, "/healthz") },
		agentSandbox: func(ctx context.Context) error {
			return c.awaitURL(ctx, agentSandbox, plan.AgentSandboxHealth, "/readyz")
		},
	}
}

// awaitURL waits until a component's own page on loopback says that all is well.
func (c *Cluster) awaitURL(ctx context.Context, name string, port int, path string) error {
	ask := func(ctx context.Context) error { return httpOK(ctx, "http://"+loopback(port)+path) }
	return kube.Until(ctx, healthWait, "the start of "+name, c.alive(name, ask))
}

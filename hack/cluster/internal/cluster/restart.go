package cluster

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/sandbox-broker/sandbox-broker/hack/cluster/internal/kube"
	"github.com/sandbox-broker/sandbox-broker/hack/cluster/internal/plan"
)

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
		if err := c.keeper.Restart(ctx, name); err != nil {
			return err
		}
		return await(ctx)
	})
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

package cluster

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/sandbox-broker/sandbox-broker/hack/cluster/internal/images"
	"github.com/sandbox-broker/sandbox-broker/hack/cluster/internal/kube"
	"github.com/sandbox-broker/sandbox-broker/hack/cluster/internal/plan"
)

// refillWait bounds the wait for the pool's old sandboxes to go.
const refillWait = 60 * time.Second

// Load brings the project as it is now into the running cluster: it rebuilds
// the images, applies the manifests, restarts the broker, and makes the pool's
// sandboxes anew if their image changed.
func (c *Cluster) Load(ctx context.Context) error {
	begin := time.Now()
	unlock, err := c.attach()
	if err != nil {
		return err
	}
	defer unlock()
	var built []images.Image
	var imported []string
	for _, s := range []struct {
		name string
		step func(context.Context) error
	}{
		{"build the images", func(ctx context.Context) (err error) {
			built, err = c.imageBuilder().All(ctx)
			return err
		}},
		{"import them", func(ctx context.Context) (err error) {
			imported, err = images.Store{Dirs: c.dirs}.Import(ctx, built)
			return err
		}},
		{"apply the manifests", c.applyAll},
		{"restart the broker and refresh the warm pool", func(ctx context.Context) error {
			// The broker is restarted in any case: it may be its
			// configuration that changed.
			return c.refreshChanged(ctx, append(imported, plan.BrokerImage))
		}},
		{"wait for the warm pool", c.awaitPool},
		{"wait for the broker", c.awaitBroker},
	} {
		if err := c.stage(ctx, s.name, s.step); err != nil {
			return err
		}
	}
	fmt.Fprintf(c.out, "%6.1fs  in all\n", time.Since(begin).Seconds())
	return nil
}

// attach prepares for work on a cluster that must be up.
func (c *Cluster) attach() (unlock func(), err error) {
	if _, err := c.client(); err != nil {
		return nil, err
	}
	if err := c.findGroup(); err != nil {
		return nil, err
	}
	alive, err := c.running()
	if err != nil {
		return nil, err
	}
	if alive < len(names()) {
		return nil, fmt.Errorf("%d of the cluster's %d processes run: start the others with up", alive, len(names()))
	}
	return c.lock()
}

// Images builds every image, without a cluster.
func (c *Cluster) Images(ctx context.Context) ([]images.Image, error) {
	if err := c.preflight(ctx); err != nil {
		return nil, err
	}
	if err := c.installPackages(ctx); err != nil {
		return nil, err
	}
	return c.imageBuilder().All(ctx)
}

// refreshChanged makes what runs from the images run from their newest form.
func (c *Cluster) refreshChanged(ctx context.Context, changed []string) error {
	client, err := c.client()
	if err != nil {
		return err
	}
	if slices.Contains(changed, plan.BrokerImage) && c.has(brokerFolder) && c.has(brokerSource) {
		if err := client.RestartDeployment(ctx, plan.BrokerNamespace, plan.BrokerName); err != nil {
			return fmt.Errorf("restarting the broker: %w", err)
		}
	}
	sandboxChanged := slices.Contains(changed, plan.RunnerImage) || slices.Contains(changed, plan.SandboxImage)
	if sandboxChanged && c.has(warmPoolFolder) {
		return c.refreshPool(ctx, client)
	}
	return nil
}

func (c *Cluster) refreshPool(ctx context.Context, client *kube.Client) error {
	old, err := client.EmptyWarmPool(ctx, plan.SandboxNamespace, plan.WarmPool)
	if err != nil {
		return fmt.Errorf("emptying the warm pool: %w", err)
	}
	return kube.Until(ctx, refillWait, "the end of the old sandboxes", func(ctx context.Context) error {
		return client.SandboxesGone(ctx, plan.SandboxNamespace, old)
	})
}

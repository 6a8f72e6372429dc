package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/sandbox-broker/sandbox-broker/hack/cluster/internal/hostnet"
	"github.com/sandbox-broker/sandbox-broker/hack/cluster/internal/images"
	"github.com/sandbox-broker/sandbox-broker/hack/cluster/internal/kube"
	"github.com/sandbox-broker/sandbox-broker/hack/cluster/internal/plan"
	"github.com/sandbox-broker/sandbox-broker/hack/cluster/internal/preflight"
	"github.com/sandbox-broker/sandbox-broker/hack/cluster/internal/tools"
)

// Up brings the cluster up and prints the line that makes it usable in a shell.
func (c *Cluster) Up(ctx context.Context) error {
	begin := time.Now()
	if err := c.stage(ctx, "look at the machine", c.preflight); err != nil {
		return err
	}
	unlock, err := c.lock()
	if err != nil {
		return err
	}
	defer unlock()
	var built builds
	stages := []struct {
		name string
		step func(context.Context) error
	}{
		{"install missing packages", c.installPackages},
		{"build the cluster's programs", func(ctx context.Context) (err error) {
			built.data, err = c.toolBuilder().Ensure(ctx)
			return err
		}},
		{"build the images", func(ctx context.Context) (err error) {
			built.images, err = c.imageBuilder().All(ctx)
			return err
		}},
		{"clear away an earlier cluster", func(ctx context.Context) (err error) {
			built.fresh, err = c.clearDead(ctx)
			return err
		}},
		{"network, keys and configuration", c.prepare},
		{"start the cluster", func(ctx context.Context) error { return c.startAll(ctx, &built) }},
		{"apply the manifests", c.applyAll},
		{"refresh what has a new image", func(ctx context.Context) error {
			if built.fresh {
				return nil // all of it was made from the new images
			}
			return c.refreshChanged(ctx, built.imported)
		}},
		{"wait for the warm pool", c.awaitPool},
		{"wait for the broker", c.awaitBroker},
	}
	for _, s := range stages {
		if err := c.stage(ctx, s.name, s.step); err != nil {
			return err
		}
	}
	fmt.Fprintf(c.out, "%6.1fs  in all\n", time.Since(begin).Seconds())
	return nil
}

// builds is what the building stages hand on to the later ones.
type builds struct {
	data     map[string]string
	images   []images.Image
	imported []string
	// fresh says that no earlier cluster goes on.
	fresh bool
}

func (c *Cluster) toolBuilder() tools.Builder { return tools.Builder{Dirs: c.dirs, Say: c.say} }

func (c *Cluster) imageBuilder() images.Builder {
	return images.Builder{Dirs: c.dirs, Mirror: c.options.Mirror, Say: c.say}
}

// preflight looks, and changes nothing.
func (c *Cluster) preflight(ctx context.Context) error {
	if err := preflight.Machine(c.dirs); err != nil {
		return err
	}
	if err := c.findGroup(); err != nil {
		return err
	}
	c.families = plan.Families{V6: hostnet.HasIPv6() && !c.options.NoIPv6}
	missing, err := preflight.Missing(ctx, preflight.Needed)
	if err != nil {
		return err
	}
	if len(missing) > 0 && c.options.NoInstall {
		return preflight.MissingError(missing)
	}
	return c.conflicts(ctx)
}

// conflicts finds out whether something else on the machine is in the way.
func (c *Cluster) conflicts(ctx context.Context) error {
	owner, exists, err := hostnet.Owner()
	if err != nil {
		return err
	}
	if exists && owner != c.dirs.State {
		return foreignCluster(owner)
	}
	clashes, err := hostnet.Clashes(c.families)
	if err != nil {
		return err
	}
	var found preflight.Problems
	if len(c.dirs.State) > plan.MaxStateDir {
		found = append(found, preflight.Problem{
			What: "the checkout's path is too long",
			Why:  fmt.Sprintf("sockets below %s would exceed the kernel's limit; %d letters are the most", c.dirs.State, plan.MaxStateDir),
		})
	}
	for _, clash := range clashes {
		found = append(found, preflight.Problem{What: clash.String(), Why: "the cluster would hide it"})
	}
	if !exists {
		found = append(found, preflight.HiddenHosts(ctx, c.families.Networks())...)
		foreign, err := c.foreignFirewall(ctx)
		if err != nil {
			return err
		}
		if foreign != "" {
			found = append(found, preflight.Problem{What: "there is a " + foreign, Why: "another Kubernetes uses this machine, and the two would undo each other's rules"})
		}
	}
	if pids, err := c.group.Processes(); err != nil {
		return err
	} else if len(pids) == 0 {
		// Else the listeners may be our own.
		found = append(found, takenPorts()...)
	}
	if len(found) > 0 {
		return found
	}
	return nil
}

// foreignFirewall asks only when nothing here can be of an earlier cluster.
func (c *Cluster) foreignFirewall(ctx context.Context) (string, error) {
	if _, err := os.Stat(c.dirs.HostRecord()); err == nil {
		return "", nil
	}
	return hostnet.ForeignFirewall(ctx)
}

func foreignCluster(owner string) error {
	if owner == "" {
		return fmt.Errorf("there is a link %s that this program did not make; it needs that name", plan.Bridge)
	}
	return fmt.Errorf("the cluster of another checkout is up, with its state in %s: take it down first (there: make cluster-down)", owner)
}

func (c *Cluster) installPackages(ctx context.Context) error {
	missing, err := preflight.Missing(ctx, preflight.Needed)
	if err != nil || len(missing) == 0 {
		return err
	}
	for _, line := range preflight.InstallCommands(missing) {
		c.say("%s", line)
	}
	return preflight.Install(ctx, missing)
}

// clearDead removes what a cluster left that has no process any more, and tells
// whether a new one begins.
func (c *Cluster) clearDead(ctx context.Context) (fresh bool, err error) {
	alive, err := c.running()
	if err != nil {
		return false, err
	}
	if alive > 0 {
		return false, c.endUnrecorded()
	}
	if err := c.removeAll(ctx); err != nil {
		return false, err
	}
	return true, c.rotateLogs()
}

// rotateLogs sets the logs of the last cluster aside, in place of those of the
// one before it.
func (c *Cluster) rotateLogs() error {
	aside := filepath.Join(c.dirs.Logs(), "previous")
	logs, err := filepath.Glob(filepath.Join(c.dirs.Logs(), "*.log"))
	if err != nil || len(logs) == 0 {
		return err
	}
	if err := os.RemoveAll(aside); err != nil {
		return err
	}
	if err := os.MkdirAll(aside, 0o755); err != nil {
		return err
	}
	for _, log := range logs {
		if err := os.Rename(log, filepath.Join(aside, filepath.Base(log))); err != nil {
			return err
		}
	}
	return nil
}

// prepare makes everything that the processes find when they start.
func (c *Cluster) prepare(ctx context.Context) error {
	for _, dir := range []string{c.dirs.Run(), c.dirs.Logs(), c.dirs.Config(), c.dirs.PKI()} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
	}
	steps := []func() error{
		func() error { return hostnet.Remember(ctx, c.dirs.HostRecord()) },
		c.group.Create,
		func() error { return hostnet.EnsureBridge(c.dirs.State, c.families) },
		func() error { return hostnet.EnsureGuard(ctx, c.families) },
		func() error { return hostnet.Configure(c.families) },
		c.makeKeys,
		c.writeConfigs,
	}
	for _, i := range plan.Internets {
		steps = append(steps, func() error { return hostnet.EnsureInternet(i, c.families) })
	}
	for _, step := range steps {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// startAll starts every process and imports the images beside it.
func (c *Cluster) startAll(ctx context.Context, b *builds) error {
	if err := c.startInternet(ctx); err != nil {
		return err
	}
	if err := c.ensure(ctx, c.containerdCommand()); err != nil {
		return err
	}
	both, ctx := errgroup.WithContext(ctx)
	both.Go(func() error {
		if err := c.awaitSocket(ctx, c.dirs.ContainerdSocket()); err != nil {
			return err
		}
		var err error
		b.imported, err = images.Store{Dirs: c.dirs}.Import(ctx, b.images)
		return err
	})
	both.Go(func() error { return c.startKubernetes(ctx, b.data["crds"]) })
	return both.Wait()
}

func (c *Cluster) startKubernetes(ctx context.Context, crds string) error {
	for _, p := range []func() error{
		func() error { return c.ensure(ctx, c.etcdCommand()) },
		func() error { return c.ensure(ctx, c.apiServerCommand()) },
		func() error { return c.awaitAPI(ctx) },
		func() error { return c.ensure(ctx, c.controllerManagerCommand()) },
		func() error { return c.ensure(ctx, c.schedulerCommand()) },
		func() error { return c.awaitSocket(ctx, c.dirs.ContainerdSocket()) },
		func() error { return c.ensure(ctx, c.kubeletCommand()) },
		func() error { return c.ensure(ctx, c.kubeProxyCommand()) },
		func() error { return c.applyKinds(ctx, crds) },
		func() error { return c.awaitNode(ctx) },
		func() error { return c.ensure(ctx, c.kubeRouterCommand()) },
		func() error { return c.ensure(ctx, c.agentSandboxCommand()) },
		func() error { return c.awaitHealthy(ctx) },
	} {
		if err := p(); err != nil {
			return err
		}
	}
	return nil
}

// startInternet starts the servers in the played internet.
func (c *Cluster) startInternet(ctx context.Context) error {
	self, err := os.Executable()
	if err != nil {
		return err
	}
	for _, i := range plan.Internets {
		if err := c.ensure(ctx, c.internetCommand(i, self, hostnet.NamespacePath(i.Name))); err != nil {
			return err
		}
	}
	return nil
}

// client connects to the cluster, which has to have a kubeconfig by then.
func (c *Cluster) client() (*kube.Client, error) {
	if _, err := os.Stat(c.dirs.AdminKubeconfig()); errors.Is(err, os.ErrNotExist) {
		return nil, errors.New("there is no cluster: start one with up")
	}
	return kube.New(c.dirs.AdminKubeconfig())
}

// Package cluster raises, inspects and removes a real one-node Kubernetes on
// this machine, with nothing but Go modules and Debian packages.
//
// Up brings the machine to the wanted state from whatever state it is in. It
// works in stages, each of which looks first and then does only what is
// missing, so that a second Up is quick. What happens to an earlier cluster
// depends on how it was left:
//
//   - Some of its processes run: the others are started again on its state.
//   - None runs any more, after a reboot or a kill of everything: what it left
//     behind is removed and a fresh one is made. The state of a test cluster is
//     not worth the doubt whether it is whole.
//
// Down removes everything but the logs. The caches of built programs and images
// are in the user's cache folder and survive.
package cluster

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"github.com/sandbox-broker/sandbox-broker/hack/cluster/internal/cgroups"
	"github.com/sandbox-broker/sandbox-broker/hack/cluster/internal/plan"
	"github.com/sandbox-broker/sandbox-broker/hack/cluster/internal/proc"
)

// Options are what the command line decides.
type Options struct {
	// NoInstall only names the Debian packages that are missing.
	NoInstall bool
	// NoIPv6 leaves IPv6 out even where the kernel has it.
	NoIPv6 bool
	// Mirror is where the sandbox image's packages come from; empty leaves it
	// to mmdebstrap.
	Mirror string
}

// Cluster is the local cluster of one checkout.
type Cluster struct {
	dirs     plan.Dirs
	options  Options
	out      io.Writer
	families plan.Families
	group    *cgroups.Tree
	keeper   proc.Keeper
	// shimSockets are to be removed once their shims are gone.
	shimSockets []string
}

// New prepares the cluster of the checkout around the folder start. It changes
// nothing. Progress goes to out.
func New(start string, options Options, out io.Writer) (*Cluster, error) {
	dirs, err := plan.FindDirs(start)
	if err != nil {
		return nil, err
	}
	return &Cluster{
		dirs: dirs, options: options, out: out,
		keeper: proc.Keeper{Dir: dirs.Run(), Logs: dirs.Logs()},
	}, nil
}

// say prints one line of progress.
func (c *Cluster) say(format string, args ...any) {
	fmt.Fprintf(c.out, "  "+format+"\n", args...)
}

// stage runs one step and prints how long it took.
func (c *Cluster) stage(ctx context.Context, name string, step func(context.Context) error) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	begin := time.Now()
	if err := step(ctx); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	fmt.Fprintf(c.out, "%6.1fs  %s\n", time.Since(begin).Seconds(), name)
	return nil
}

// findGroup looks up the control groups, which all but the preflight need.
func (c *Cluster) findGroup() error {
	group, err := cgroups.Find(plan.CgroupRoot)
	if err != nil {
		return err
	}
	c.group, c.keeper.Group = group, group
	return nil
}

// errBusy says that another run of this program is at work on the cluster.
var errBusy = errors.New("another up, down, load or restart of this cluster is running")

// lock keeps two runs of this program from working on the cluster at a time.
// The kernel drops the lock when the process ends, however it ends.
func (c *Cluster) lock() (unlock func(), err error) {
	if err := os.MkdirAll(c.dirs.State, 0o755); err != nil {
		return nil, err
	}
	f, err := os.OpenFile(c.dirs.Lock(), os.O_CREATE|os.O_RDWR, 0o600)
	if err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, errBusy
		}
		return nil, fmt.Errorf("locking %s: %w", c.dirs.Lock(), err)
	}
	return func() { f.Close() }, nil
}

// names lists every process that the cluster may have.
func names() []string {
	all := []string{etcd, containerd, apiServer, controllerManager, scheduler, kubelet, kubeProxy, kubeRouter, agentSandbox}
	for _, i := range plan.Internets {
		all = append(all, i.Name)
	}
	return all
}

// running counts the recorded processes that are alive.
func (c *Cluster) running() (int, error) {
	var count int
	for _, name := range names() {
		_, alive, err := c.keeper.Lookup(name)
		if err != nil {
			return 0, err
		}
		if alive {
			count++
		}
	}
	return count, nil
}

// writeFile writes a file whole or not at all.
func writeFile(path string, content []byte, mode os.FileMode) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	if err := os.WriteFile(path+".new", content, mode); err != nil {
		return err
	}
	return os.Rename(path+".new", path)
}

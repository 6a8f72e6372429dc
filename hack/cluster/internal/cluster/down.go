package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sandbox-broker/sandbox-broker/hack/cluster/internal/hostnet"
	"github.com/sandbox-broker/sandbox-broker/hack/cluster/internal/mounts"
	"github.com/sandbox-broker/sandbox-broker/hack/cluster/internal/plan"
	"github.com/sandbox-broker/sandbox-broker/hack/cluster/internal/preflight"
)

// Down stops the cluster and removes everything that it made on the machine,
// apart from its logs and the caches.
func (c *Cluster) Down(ctx context.Context) error {
	if err := preflight.Privileged(); err != nil {
		return err
	}
	if err := c.findGroup(); err != nil {
		return err
	}
	owner, exists, err := hostnet.Owner()
	if err != nil {
		return err
	}
	if exists && owner != c.dirs.State {
		return foreignCluster(owner)
	}
	unlock, err := c.lock()
	if err != nil {
		return err
	}
	defer unlock()
	if err := c.stage(ctx, "stop the cluster", c.stopAll); err != nil {
		return err
	}
	return c.stage(ctx, "remove what it left", c.removeAll)
}

// stopAll ends the recorded processes in order. One that does not end does not
// keep the others from being asked.
func (c *Cluster) stopAll(ctx context.Context) error {
	order := stopOrder
	for _, i := range plan.Internets {
		order = append(order[:len(order):len(order)], i.Name)
	}
	problems := []error{c.noteShimSockets()}
	for _, name := range order {
		problems = append(problems, c.keeper.Stop(ctx, name, stopWaitOf(name)))
		if name != kubelet {
			continue
		}
		// Nobody restarts pods now. A pod that watches or execs would keep the
		// API server from ending.
		killed, err := c.group.KillPods()
		c.say("ended %d processes in pods", killed)
		problems = append(problems, err)
	}
	return errors.Join(problems...)
}

// removeAll removes all traces of a cluster that has no recorded process any
// more. Each step is tried whatever became of the others.
func (c *Cluster) removeAll(ctx context.Context) error {
	killed, err := c.group.KillAll()
	if killed > 0 {
		c.say("ended %d processes that were left", killed)
	}
	problems := []error{err}
	for _, dir := range []string{c.dirs.State, plan.RunscRoot} {
		count, err := mounts.RemoveBelow(dir)
		if count > 0 {
			c.say("unmounted %d file systems below %s", count, dir)
		}
		problems = append(problems, err)
	}
	problems = append(problems, c.removeShimSockets(), hostnet.RemoveFirewall(ctx), hostnet.RemoveLinks(),
		hostnet.Restore(ctx, c.dirs.HostRecord()), c.group.Remove(), removeStray(c.dirs.State))
	if err := errors.Join(problems...); err != nil {
		return err
	}
	return errors.Join(removeFolder(plan.RunscRoot), c.removeState())
}

// removeState empties the state folder, but for the logs, the lock, and what is
// built and would only be built again.
func (c *Cluster) removeState() error {
	entries, err := os.ReadDir(c.dirs.State)
	if err != nil {
		return err
	}
	keep := []string{c.dirs.Logs(), c.dirs.Lock(), c.dirs.Bin(), c.dirs.Build()}
	var problems []error
	for _, e := range entries {
		if !slices.Contains(keep, c.dirs.In(e.Name())) {
			problems = append(problems, removeFolder(c.dirs.In(e.Name())))
		}
	}
	return errors.Join(problems...)
}

// removeFolder removes a folder that nothing is mounted in: what is mounted
// would be emptied with it.
func removeFolder(dir string) error {
	left, err := mounts.Below(dir)
	if err != nil {
		return err
	}
	if len(left) > 0 {
		return fmt.Errorf("still mounted: %s", strings.Join(left, ", "))
	}
	return os.RemoveAll(dir)
}

// noteShimSockets remembers the sockets of the shims that are there. They lie in
// a folder that all containerds of the machine share; which are ours, only the
// bundles say, and those go when containerd sees their shims die.
func (c *Cluster) noteShimSockets() error {
	bundles, err := filepath.Glob(filepath.Join(c.dirs.ContainerdState(), "io.containerd.runtime.v2.task", "*", "*"))
	for _, bundle := range bundles {
		c.shimSockets = append(c.shimSockets, shimSockets(bundle)...)
	}
	return err
}

// removeShimSockets removes the sockets of shims that could not do it.
func (c *Cluster) removeShimSockets() error {
	problems := []error{c.noteShimSockets()}
	for _, socket := range c.shimSockets {
		if err := os.Remove(socket); err != nil && !errors.Is(err, os.ErrNotExist) {
			problems = append(problems, err)
		}
	}
	return errors.Join(problems...)
}

// shimSockets reads the sockets from a bundle: older shims write the address as
// such, newer ones in a file of JSON.
func shimSockets(bundle string) []string {
	var addresses []string
	if text, err := os.ReadFile(filepath.Join(bundle, "address")); err == nil {
		addresses = append(addresses, strings.TrimSpace(string(text)))
	}
	var bootstrap struct {
		Address string `json:"address"`
	}
	if text, err := os.ReadFile(filepath.Join(bundle, "bootstrap.json")); err == nil && json.Unmarshal(text, &bootstrap) == nil {
		addresses = append(addresses, bootstrap.Address)
	}
	var sockets []string
	for _, a := range addresses {
		if socket, ok := strings.CutPrefix(a, "unix://"); ok && !slices.Contains(sockets, socket) {
			sockets = append(sockets, socket)
		}
	}
	return sockets
}

// strays are folders of the machine's into which a component writes that cannot
// be told another place. Only what names the cluster is removed from them, and
// the folders themselves once they are empty.
var strays = []struct {
	dir  string
	ours func(path, state string) bool
}{
	// kubelet links every container's log here.
	{"/var/log/containers", func(path, state string) bool {
		target, err := os.Readlink(path)
		return err == nil && strings.HasPrefix(target, state+"/")
	}},
	// The CNI library keeps what it did for each pod.
	{"/var/lib/cni/results", func(path, _ string) bool {
		return strings.HasPrefix(filepath.Base(path), cniNetwork+"-")
	}},
	{"/var/lib/cni", never},
	// kubelet puts this socket here wherever its other files are.
	{"/var/lib/kubelet/device-plugins", func(path, _ string) bool {
		return filepath.Base(path) == "kubelet.sock" && !answers(path)
	}},
	{"/var/lib/kubelet", never},
	{"/run/containerd/s", never},
	{"/run/containerd", never},
	{"/run/netns", never},
}

func never(string, string) bool { return false }

// answers tells whether somebody listens on a socket.
func answers(socket string) bool {
	conn, err := net.DialTimeout("unix", socket, dialWait)
	if err != nil {
		return false
	}
	conn.Close()
	return true
}

func removeStray(state string) error {
	var problems []error
	for _, s := range strays {
		entries, err := os.ReadDir(s.dir)
		if err != nil {
			continue // it is not there
		}
		left := 0
		for _, e := range entries {
			path := filepath.Join(s.dir, e.Name())
			if !s.ours(path, state) {
				left++
				continue
			}
			problems = append(problems, os.Remove(path))
		}
		if left == 0 {
			problems = append(problems, removeIfEmpty(s.dir))
		}
	}
	return errors.Join(problems...)
}

// removeIfEmpty leaves a folder alone that someone uses, even as a mount point.
func removeIfEmpty(dir string) error {
	if points, err := mounts.Below(dir); err != nil || len(points) > 0 {
		return err
	}
	// Not empty any more, or gone: both are fine.
	_ = os.Remove(dir)
	return nil
}

package cluster

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/sandbox-broker/sandbox-broker/hack/cluster/internal/cgroups"
)

const (
	// gVisor's shim of one pod, and its process for the pod's sandbox.
	shimProgram    = "containerd-shim-runsc-v1"
	sandboxProgram = "runsc-sandbox"
)

// endStuckShims ends the shims that may hang, while no containerd is there. One that was
// asked to start or stop its sandbox when containerd was killed may do so for ever; the
// next containerd asks each shim that it finds, without a bound, and would hang at its
// start. Of a shim that is gone it clears away what is left. So pods that do not run yet,
// or are being deleted, are ended whole, and so are shims that have no sandbox any more.
func (c *Cluster) endStuckShims(ctx context.Context) error {
	pods, err := c.group.Pods()
	if err != nil {
		return err
	}
	unsettled := c.unsettled(ctx)
	for _, p := range pods {
		if unsettled(p) {
			if err := killAll(p.Processes); err != nil {
				return fmt.Errorf("ending a pod that starts or stops: %w", err)
			}
		}
	}
	pods = slices.DeleteFunc(pods, unsettled)
	pids, err := c.group.Processes()
	if err != nil {
		return err
	}
	lines := map[int][][]byte{}
	for _, pid := range pids {
		if text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid)); err == nil { // else it has just ended
			lines[pid] = bytes.Split(bytes.TrimSuffix(text, []byte{0}), []byte{0})
		}
	}
	stuck := emptyShims(lines, pods)
	if err := killAll(stuck); err != nil {
		return fmt.Errorf("ending a shim that has no sandbox: %w", err)
	}
	if len(stuck) > 0 {
		c.say("ended %d shims without a sandbox", len(stuck))
	}
	return nil
}

// unsettled tells which pods start or stop, as far as the API server can be asked: it may
// be away too.
func (c *Cluster) unsettled(ctx context.Context) func(cgroups.Pod) bool {
	var settled map[string]bool
	client, err := c.client()
	if err == nil {
		settled, err = client.SettledPods(ctx)
	}
	if err != nil {
		c.say("not known which pods start or stop: %v", err)
		return func(cgroups.Pod) bool { return false }
	}
	return func(p cgroups.Pod) bool { return !settled[p.UID] }
}

func killAll(pids []int) error {
	for _, pid := range pids {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("process %d: %w", pid, err)
		}
	}
	return nil
}

// emptyShims finds, among command lines by process, the shims without a sandbox. Each
// container has a shim, and all of a pod's containers have one sandbox.
func emptyShims(lines map[int][][]byte, pods []cgroups.Pod) []int {
	shims := map[string]int{} // by the container's ID
	sandboxes := map[int]bool{}
	for pid, args := range lines {
		switch filepath.Base(string(args[0])) {
		case shimProgram:
			shims[shimID(args)] = pid
		case sandboxProgram:
			sandboxes[pid] = true
		}
	}
	for _, p := range pods {
		if slices.ContainsFunc(p.Processes, func(pid int) bool { return sandboxes[pid] }) {
			for _, id := range p.Containers {
				delete(shims, id)
			}
		}
	}
	delete(shims, "")
	return slices.Sorted(maps.Values(shims))
}

// shimID is the value of a shim's flag -id; empty without one.
func shimID(args [][]byte) string {
	for i, a := range args[:len(args)-1] {
		if string(a) == "-id" {
			return string(args[i+1])
		}
	}
	return ""
}

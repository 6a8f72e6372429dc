package cluster

import (
	"bytes"
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

// endEmptyShims ends the shims whose sandbox has ended, while no containerd is there to
// do it. One that was asked to stop its sandbox when containerd was killed may hang for
// ever; the next containerd asks each shim that it finds, without a bound, and would hang
// at its start. Of a shim that is gone it clears away what is left.
func (c *Cluster) endEmptyShims() error {
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
	pods, err := c.group.Pods()
	if err != nil {
		return err
	}
	for _, pid := range emptyShims(lines, pods) {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("ending the shim %d, which has no sandbox: %w", pid, err)
		}
		c.say("ended process %d, a shim without a sandbox", pid)
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

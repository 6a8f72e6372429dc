package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"
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
	for _, pid := range emptyShims(lines) {
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("ending the shim %d, which has no sandbox: %w", pid, err)
		}
		c.say("ended process %d, a shim without a sandbox", pid)
	}
	return nil
}

// emptyShims finds, among command lines by process, the shims without a sandbox.
func emptyShims(lines map[int][][]byte) []int {
	shims := map[string]int{} // by the pod's ID
	for pid, args := range lines {
		if filepath.Base(string(args[0])) == shimProgram {
			shims[shimID(args)] = pid
		}
	}
	for _, args := range lines {
		if filepath.Base(string(args[0])) == sandboxProgram {
			delete(shims, string(args[len(args)-1]))
		}
	}
	delete(shims, "")
	var pids []int
	for _, pid := range shims {
		pids = append(pids, pid)
	}
	return pids
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

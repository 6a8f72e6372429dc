package cluster

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"syscall"

	"github.com/sandbox-broker/sandbox-broker/hack/cluster/internal/plan"
)

// endUnrecorded ends components that run in our control group but match no
// record: an Up that was killed had no time to write it, or someone deleted it.
// Left alone, they would hold the ports of those that are started now.
func (c *Cluster) endUnrecorded() error {
	pids, err := c.group.Processes()
	if err != nil {
		return err
	}
	for _, pid := range pids {
		text, err := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
		if err != nil {
			continue // it has just ended
		}
		name := componentOf(text, c.dirs.Bin())
		if name == "" {
			continue
		}
		if r, alive, err := c.keeper.Lookup(name); err != nil || (alive && r.PID == pid) {
			continue
		}
		if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
			return fmt.Errorf("ending %s (process %d), which has no record: %w", name, pid, err)
		}
		c.say("ended process %d, a %s without a record", pid, name)
	}
	return nil
}

// componentOf tells from a command line which component it is of, or "".
func componentOf(cmdline []byte, bin string) string {
	var args []string
	for arg := range bytes.SplitSeq(cmdline, []byte{0}) {
		args = append(args, string(arg))
	}
	if dir, name := filepath.Split(args[0]); filepath.Clean(dir) == bin && slices.Contains(names(), name) {
		return name
	}
	for _, i := range plan.Internets {
		if slices.Contains(args, "internet") && slices.Contains(args, "--name="+i.Name) {
			return i.Name
		}
	}
	return ""
}

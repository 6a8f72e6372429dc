package runner

import (
	"bytes"
	"os"
	"path"
	"strconv"
	"strings"
	"sync"
)

// A process that the kernel kills for its memory ends by SIGKILL, like one that anybody
// killed. Only its control group knows more: it counts such kills.

// cgroupRoot is where control groups are mounted.
const cgroupRoot = "/sys/fs/cgroup"

// isGVisor is inGVisor, looked at once.
var isGVisor = sync.OnceValue(inGVisor)

// kernelKills is how often the kernel has killed a process of this control group for its
// memory; 0 if it does not tell, as in gVisor, which ends the whole sandbox instead.
func kernelKills() int64 {
	if isGVisor() {
		return 0
	}
	membership, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return 0
	}
	for _, file := range killCounters(string(membership)) {
		if text, err := os.ReadFile(file); err == nil {
			return killCount(text)
		}
	}
	return 0
}

// killCounters are the files that may have the count, best first, for the lines of
// /proc/self/cgroup. A container that sees its own group only has it at the root.
func killCounters(membership string) []string {
	var files []string
	for line := range strings.Lines(membership) {
		id, rest, _ := strings.Cut(strings.TrimSpace(line), ":")
		controllers, group, _ := strings.Cut(rest, ":")
		switch {
		case strings.Contains(","+controllers+",", ",memory,"): // version 1
			files = append([]string{path.Join(cgroupRoot, "memory", group, "memory.oom_control"), path.Join(cgroupRoot, "memory", "memory.oom_control")}, files...)
		case id == "0" && controllers == "": // version 2
			files = append(files, path.Join(cgroupRoot, group, "memory.events"), path.Join(cgroupRoot, "memory.events"))
		}
	}
	return files
}

// killCount reads the count from memory.oom_control or memory.events.
func killCount(text []byte) int64 {
	for line := range bytes.Lines(text) {
		if value, ok := bytes.CutPrefix(line, []byte("oom_kill ")); ok {
			n, err := strconv.ParseInt(string(bytes.TrimSpace(value)), 10, 64)
			if err != nil {
				return 0
			}
			return n
		}
	}
	return 0
}

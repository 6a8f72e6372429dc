// Package preflight finds out whether this machine can carry the cluster,
// before anything is changed on it. It says what is missing and why that
// matters, all of it at once.
package preflight

import (
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"

	"github.com/sandbox-broker/sandbox-broker/hack/cluster/internal/cgroups"
	"github.com/sandbox-broker/sandbox-broker/hack/cluster/internal/plan"
)

// Problem is something that the machine lacks.
type Problem struct{ What, Why string }

// Problems is what stands between this machine and a cluster.
type Problems []Problem

func (p Problems) Error() string {
	var b strings.Builder
	b.WriteString("this machine cannot carry the cluster, and nothing was changed on it:")
	for _, one := range p {
		fmt.Fprintf(&b, "\n  - %s: %s", one.What, one.Why)
	}
	return b.String()
}

// minDisk is what the first build leaves in caches and state.
const minDisk = 15 << 30

// check is one question to the machine; it answers nil when all is well.
type check func() *Problem

// Privileged asks only what removing a cluster needs.
func Privileged() error {
	for _, c := range []check{linux, root} {
		if p := c(); p != nil {
			return Problems{*p}
		}
	}
	return nil
}

// Machine asks everything that needs no cluster and changes nothing.
func Machine(d plan.Dirs) error {
	checks := []check{
		linux, root, devices, cgroup, filesystems, namespaces, goTool,
		func() *Problem { return diskSpace(d.Project) },
	}
	var found Problems
	for _, c := range checks {
		if p := c(); p != nil {
			found = append(found, *p)
		}
	}
	if len(found) > 0 {
		return found
	}
	return nil
}

func linux() *Problem {
	if runtime.GOOS == "linux" && (runtime.GOARCH == "amd64" || runtime.GOARCH == "arm64") {
		return nil
	}
	return &Problem{"not Linux on amd64 or arm64", "containers and gVisor exist only there; this is " + runtime.GOOS + "/" + runtime.GOARCH}
}

func root() *Problem {
	if os.Geteuid() == 0 {
		return nil
	}
	return &Problem{"not root", "network namespaces, mounts and control groups need it; run it with sudo"}
}

func devices() *Problem {
	if _, err := os.Stat("/dev/null"); err != nil {
		return &Problem{"no /dev/null", "containers get it from the machine"}
	}
	return nil
}

func cgroup() *Problem {
	if _, err := cgroups.Find(plan.CgroupRoot); err != nil {
		return &Problem{"no usable cgroup: " + err.Error(), "kubelet limits pods with them"}
	}
	if root() != nil {
		return nil // then of course it cannot be written
	}
	if err := syscall.Access("/sys/fs/cgroup", 0x2); err != nil {
		return &Problem{"/sys/fs/cgroup cannot be written", "kubelet makes a group for each pod"}
	}
	return nil
}

func filesystems() *Problem {
	text, err := os.ReadFile("/proc/filesystems")
	if err != nil {
		return &Problem{"no /proc/filesystems", err.Error()}
	}
	for _, fs := range strings.Fields(string(text)) {
		if fs == "overlay" {
			return nil
		}
	}
	// It may be a module that loads when first used.
	if exec.Command("modprobe", "--dry-run", "overlay").Run() == nil {
		return nil
	}
	return &Problem{"no overlay file system", "containerd lays images over each other with it"}
}

func namespaces() *Problem {
	for _, ns := range []string{"net", "pid", "mnt", "ipc", "uts"} {
		if _, err := os.Stat("/proc/self/ns/" + ns); err != nil {
			return &Problem{"no " + ns + " namespaces in this kernel", "pods are made of them"}
		}
	}
	return nil
}

func goTool() *Problem {
	if _, err := exec.LookPath("go"); err == nil {
		return nil
	}
	return &Problem{"no go in PATH", "every part of the cluster is built from source; sudo often drops it: try sudo env PATH=\"$PATH\" …"}
}

func diskSpace(dir string) *Problem {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(dir, &fs); err != nil {
		return &Problem{"cannot tell the free disk space", err.Error()}
	}
	if free := fs.Bavail * uint64(fs.Bsize); free < minDisk {
		return &Problem{fmt.Sprintf("only %d GiB free", free>>30), fmt.Sprintf("a first build needs about %d GiB", uint64(minDisk)>>30)}
	}
	return nil
}

//go:build linux

package local

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"time"

	"github.com/containerd/cgroups/v3"
	"github.com/containerd/cgroups/v3/cgroup1"
	"github.com/containerd/cgroups/v3/cgroup2"
	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
)

const (
	// cgroupRoot is where the kernel's control groups are mounted.
	cgroupRoot = "/sys/fs/cgroup"
	// sentryMemory is what gVisor itself may use on top of a sandbox's memory
	// limit, in bytes: the runner ends what exceeds the limit before the kernel
	// ends the whole sandbox.
	sentryMemory = 160 << 20
	// cpuPeriod is the kernel's default period of CPU limits, in microseconds.
	cpuPeriod = 100_000
	// hostThreads bounds the threads of this machine that a sandbox may use. It
	// lies far above what the runner allows a sandbox, because gVisor does not
	// survive it: a fork bomb that outruns the runner meets the memory's limit
	// first, which says what happened.
	hostThreads = 20_000
)

// groups are the control groups of one broker's sandboxes. The group of one is
// found by the state folder and the sandbox's name.
type groups struct {
	mode   cgroups.CGMode
	parent string
}

func newGroups(stateDir string) groups {
	sum := sha256.Sum256([]byte(stateDir))
	return groups{mode: cgroups.Mode(), parent: "/sandbox-broker-" + hex.EncodeToString(sum[:6])}
}

// available says why there are none to be had here; nil: there are.
func (g groups) available() error {
	if g.mode == cgroups.Unavailable {
		return errors.New("this machine has no control groups at " + cgroupRoot)
	}
	return nil
}

func (g groups) path(name string) string { return g.parent + "/" + name }

// create makes a sandbox's group. A group that exists is gVisor's to join only.
func (g groups) create(name string, l Limits) error {
	memory, threads := l.Memory+sentryMemory, int64(hostThreads)
	res := &specs.LinuxResources{Memory: &specs.LinuxMemory{Limit: &memory}, Pids: &specs.LinuxPids{Limit: &threads}}
	if l.CPUs > 0 {
		quota, period := int64(math.Ceil(l.CPUs*cpuPeriod)), uint64(cpuPeriod)
		res.CPU = &specs.LinuxCPU{Quota: &quota, Period: &period}
	}
	var err error
	if g.mode == cgroups.Unified {
		_, err = cgroup2.NewManager(cgroupRoot, g.path(name), cgroup2.ToResources(res))
	} else {
		_, err = cgroup1.New(cgroup1.StaticPath(g.path(name)), res)
	}
	if err != nil {
		return fmt.Errorf("making the control group %s: %w", g.path(name), errors.Join(err, g.remove(name)))
	}
	return nil
}

// oomKilled reports whether the kernel ended something in a sandbox's group for
// its memory.
func (g groups) oomKilled(name string) bool {
	if g.mode == cgroups.Unified {
		m, err := cgroup2.Load(g.path(name))
		if err != nil {
			return false
		}
		st, err := m.Stat()
		return err == nil && st.GetMemoryEvents().GetOomKill() > 0
	}
	cg, err := cgroup1.Load(cgroup1.StaticPath(g.path(name)))
	if err != nil {
		return false
	}
	st, err := cg.Stat(cgroup1.IgnoreNotExist)
	return err == nil && st.GetMemoryOomControl().GetOomKill() > 0
}

const (
	// removeTimeout bounds the wait for a sandbox's processes to be gone.
	removeTimeout = 10 * time.Second
	// removePause is how long to wait between two looks.
	removePause = 5 * time.Millisecond
)

// remove kills what is left in a sandbox's group, waits for it to be gone, and
// removes the group. One that does not exist is no error.
func (g groups) remove(name string) error {
	timeout := time.NewTimer(removeTimeout)
	defer timeout.Stop()
	look := time.NewTicker(removePause)
	defer look.Stop()
	for {
		pids, err := g.processes(name)
		if err == nil && len(pids) == 0 {
			if err = g.delete(g.path(name)); err == nil {
				return nil
			}
		}
		for _, pid := range pids {
			_ = unix.Kill(pid, unix.SIGKILL) // it may have just ended
		}
		select {
		case <-look.C:
		case <-timeout.C:
			return fmt.Errorf("removing the control group %s: %d processes do not end: %w", g.path(name), len(pids), err)
		}
	}
}

// processes lists what runs in a sandbox's group.
func (g groups) processes(name string) ([]int, error) {
	var pids []int
	if g.mode == cgroups.Unified {
		m, err := cgroup2.Load(g.path(name))
		if err != nil {
			return nil, err
		}
		procs, err := m.Procs(true)
		for _, p := range procs {
			pids = append(pids, int(p))
		}
		return pids, gone(err)
	}
	cg, err := cgroup1.Load(cgroup1.StaticPath(g.path(name)))
	if err != nil {
		return nil, gone(err)
	}
	procs, err := cg.Processes(cgroup1.Memory, true)
	for _, p := range procs {
		pids = append(pids, p.Pid)
	}
	return pids, gone(err)
}

// gone takes a group that does not exist for one without an error.
func gone(err error) error {
	if errors.Is(err, cgroup1.ErrCgroupDeleted) || errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// close removes the parent of all groups.
func (g groups) close() error { return g.delete(g.parent) }

func (g groups) delete(path string) error {
	var err error
	if g.mode == cgroups.Unified {
		var m *cgroup2.Manager
		if m, err = cgroup2.Load(path); err == nil {
			err = m.Delete()
		}
	} else {
		var cg cgroup1.Cgroup
		if cg, err = cgroup1.Load(cgroup1.StaticPath(path)); err == nil {
			err = cg.Delete()
		}
	}
	return gone(err)
}

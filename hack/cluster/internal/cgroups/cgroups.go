// Package cgroups puts every process of the cluster below one control group.
//
// That is how leftovers are recognised. A containerd that was killed leaves its
// shims and their sandboxes running, with no parent and no record; but all of
// them were born in our group, or in a pod's group below it, and no other
// process was.
//
// Both versions of cgroups are served. Version 1 has one tree for each
// controller: the group is made in all of them, since kubelet wants its root
// there, and membership is read in one of them (see member).
package cgroups

import (
	"bufio"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

const (
	// daemons is the subgroup of the processes that this program starts.
	// Version 2 allows processes only in groups that have no children.
	daemons = "daemons"
	// pods is the subgroup that kubelet makes for its pods.
	pods = "kubepods"
	// member is the version 1 tree in which membership is kept. Nobody limits
	// anything there, so a process in it behaves as outside it.
	member = "freezer"
	// killWait bounds the wait for killed processes to go, removeWait the wait
	// for the kernel to let go of an empty group.
	killWait   = 10 * time.Second
	removeWait = 5 * time.Second
	pollEvery  = 50 * time.Millisecond
)

// needed are the controllers that kubelet cannot do without.
var needed = []string{"cpu", "cpuset", "memory", "pids"}

// Tree is the cluster's group in every hierarchy of the machine.
type Tree struct {
	name string
	// mounts are the hierarchies: one for version 2, else one per controller.
	mounts []mount
	v2     bool
	// unified is the version 2 tree of a machine that has both versions.
	// Container runtimes make groups there, too, although nothing is limited.
	unified string
}

type mount struct {
	dir         string
	controllers []string
}

// Find looks up the machine's hierarchies. It changes nothing.
func Find(name string) (*Tree, error) {
	f, err := os.Open("/proc/self/mountinfo")
	if err != nil {
		return nil, err
	}
	defer f.Close()
	t := &Tree{name: name}
	var unified string
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		m, version := parseMount(lines.Text())
		switch version {
		case 1:
			t.mounts = append(t.mounts, m)
		case 2:
			unified = m.dir
		}
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("reading the mounts: %w", err)
	}
	return t, t.settle(unified)
}

// settle decides for one version: version 1 wherever it has controllers, since
// a machine with both ("hybrid") keeps them there.
func (t *Tree) settle(unified string) error {
	if len(t.mounts) > 0 {
		var all []string
		for _, m := range t.mounts {
			all = append(all, m.controllers...)
		}
		t.unified = unified
		return missing(append([]string{member}, needed...), all, "mounted version 1 hierarchies")
	}
	if unified == "" {
		return errors.New("no cgroup file system is mounted")
	}
	text, err := os.ReadFile(filepath.Join(unified, "cgroup.controllers"))
	if err != nil {
		return fmt.Errorf("reading the cgroup controllers: %w", err)
	}
	controllers := strings.Fields(string(text))
	t.v2, t.mounts = true, []mount{{unified, controllers}}
	return missing(needed, controllers, "cgroup version 2 controllers")
}

func missing(want, have []string, where string) error {
	for _, w := range want {
		if !slices.Contains(have, w) {
			return fmt.Errorf("%s is not among the %s", w, where)
		}
	}
	return nil
}

// parseMount reads a line of mountinfo; version is 0 for any other mount. Only
// controllers and named version 1 hierarchies appear among the options that
// matter here.
func parseMount(line string) (m mount, version int) {
	before, after, ok := strings.Cut(line, " - ")
	left, right := strings.Fields(before), strings.Fields(after)
	if !ok || len(left) < 5 || len(right) < 3 {
		return mount{}, 0
	}
	m.dir = left[4]
	switch right[0] {
	case "cgroup2":
		return m, 2
	case "cgroup":
		m.controllers = strings.Split(right[2], ",")
		return m, 1
	}
	return mount{}, 0
}

// V2 tells the version.
func (t *Tree) V2() bool { return t.v2 }

// Create makes the group in every hierarchy.
func (t *Tree) Create() error {
	for _, m := range t.mounts {
		if err := t.createIn(m); err != nil {
			return fmt.Errorf("making the cgroup in %s: %w", m.dir, err)
		}
	}
	return os.MkdirAll(filepath.Join(t.memberDir(), daemons), 0o755)
}

func (t *Tree) createIn(m mount) error {
	dir := filepath.Join(m.dir, t.name)
	if t.v2 {
		return t.createV2(m, dir)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	if !slices.Contains(m.controllers, "cpuset") {
		return nil
	}
	// A new cpuset is empty and takes no process: fill it from its parent.
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		if err := copyIfEmpty(filepath.Join(m.dir, file), filepath.Join(dir, file)); err != nil {
			return err
		}
	}
	return nil
}

// createV2 also passes the controllers on, to the group and below it.
func (t *Tree) createV2(m mount, dir string) error {
	enable := []byte("+" + strings.Join(m.controllers, " +"))
	if err := os.WriteFile(filepath.Join(m.dir, "cgroup.subtree_control"), enable, 0); err != nil {
		return err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "cgroup.subtree_control"), enable, 0)
}

func copyIfEmpty(from, to string) error {
	have, err := os.ReadFile(to)
	if err != nil || strings.TrimSpace(string(have)) != "" {
		return err
	}
	value, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	return os.WriteFile(to, value, 0)
}

// memberDir is the group in the hierarchy where membership is read.
func (t *Tree) memberDir() string {
	for _, m := range t.mounts {
		if t.v2 || slices.Contains(m.controllers, member) {
			return filepath.Join(m.dir, t.name)
		}
	}
	return ""
}

// Add takes a process, and what it starts from now on, into the group.
func (t *Tree) Add(pid int) error {
	procs := filepath.Join(t.memberDir(), daemons, "cgroup.procs")
	return os.WriteFile(procs, []byte(strconv.Itoa(pid)), 0)
}

// Processes lists every process in the group and below it.
func (t *Tree) Processes() ([]int, error) { return processes(t.memberDir()) }

func processes(root string) ([]int, error) {
	var pids []int
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil // a group that went meanwhile
		}
		if err != nil || d.Name() != "cgroup.procs" {
			return err
		}
		text, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENODEV) {
			return nil
		}
		for _, field := range strings.Fields(string(text)) {
			if pid, err := strconv.Atoi(field); err == nil && pid > 1 {
				pids = append(pids, pid)
			}
		}
		return err
	})
	return pids, err
}

// Pod is the group of one pod.
type Pod struct {
	UID string
	// Containers are the IDs of those that have a group in it, the pod's sandbox too.
	Containers []string
	Processes  []int
}

// Pods are those that have a group.
func (t *Tree) Pods() ([]Pod, error) {
	var all []Pod
	err := filepath.WalkDir(filepath.Join(t.memberDir(), pods), func(path string, d fs.DirEntry, err error) error {
		switch {
		case errors.Is(err, fs.ErrNotExist):
			return nil // a group that went meanwhile
		case err != nil || !d.IsDir() || !strings.HasPrefix(d.Name(), "pod"):
			return err
		}
		p := Pod{UID: strings.TrimPrefix(d.Name(), "pod")}
		entries, err := os.ReadDir(path)
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
		for _, e := range entries {
			if e.IsDir() {
				p.Containers = append(p.Containers, e.Name())
			}
		}
		if p.Processes, err = processes(path); err != nil {
			return err
		}
		all = append(all, p)
		return fs.SkipDir
	})
	return all, err
}

// KillPods ends every process inside a pod and returns how many there were.
func (t *Tree) KillPods() (int, error) { return kill(filepath.Join(t.memberDir(), pods)) }

// KillAll ends every process of the group and returns how many there were.
func (t *Tree) KillAll() (int, error) { return kill(t.memberDir()) }

// kill looks again until no process is left, for new ones may be born meanwhile.
func kill(root string) (int, error) {
	killed := map[int]bool{}
	for deadline := time.Now().Add(killWait); ; time.Sleep(pollEvery) {
		pids, err := processes(root)
		if err != nil || len(pids) == 0 {
			return len(killed), err
		}
		for _, pid := range pids {
			killed[pid] = true
			if err := syscall.Kill(pid, syscall.SIGKILL); err != nil && !errors.Is(err, syscall.ESRCH) {
				return len(killed), fmt.Errorf("killing process %d: %w", pid, err)
			}
		}
		if time.Now().After(deadline) {
			return len(killed), fmt.Errorf("processes %v outlive SIGKILL", pids)
		}
	}
}

// Remove deletes the group everywhere. It must be empty of processes.
func (t *Tree) Remove() error {
	var problems []error
	for _, m := range t.mounts {
		problems = append(problems, removeTree(filepath.Join(m.dir, t.name)))
	}
	if t.unified != "" {
		problems = append(problems, removeTree(filepath.Join(t.unified, t.name)))
	}
	return errors.Join(problems...)
}

// removeTree removes groups from the leaves up; their files go with them.
func removeTree(root string) error {
	var dirs []string
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err == nil && d.IsDir() {
			dirs = append(dirs, path)
		}
		return err
	})
	if err != nil {
		return err
	}
	slices.Reverse(dirs)
	for _, dir := range dirs {
		if err := removeGroup(dir); err != nil {
			return fmt.Errorf("removing the cgroup %s: %w", dir, err)
		}
	}
	return nil
}

// removeGroup retries while the kernel still counts a process that just ended.
func removeGroup(dir string) error {
	for deadline := time.Now().Add(removeWait); ; time.Sleep(pollEvery) {
		err := syscall.Rmdir(dir)
		if err == nil || errors.Is(err, syscall.ENOENT) {
			return nil
		}
		if !errors.Is(err, syscall.EBUSY) || time.Now().After(deadline) {
			return err
		}
	}
}

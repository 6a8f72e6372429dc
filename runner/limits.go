package runner

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// Limits bound what the programs of a sandbox use together. Zero is no bound.
//
// The kernel's own limits, where there are any, end the whole sandbox, or some
// process of it; the runner looks first and ends the program that uses most.
type Limits struct {
	// Memory is in bytes: what all processes have of their own, and what is kept
	// in file systems that are memory. gVisor counts that for the whole sandbox, the
	// runner's share included. Elsewhere the processes are added up, with a page
	// that several share counted once.
	Memory int64
	// Processes counts processes and threads.
	Processes int
}

// watchEvery is how often the use is looked at while an exec runs.
const watchEvery = 50 * time.Millisecond

// watch keeps the limits until done is closed. It looks only while there are execs: a
// sandbox that waits sleeps.
func (s *supervisor) watch(done <-chan struct{}) {
	l := s.opts.Limits
	if l == (Limits{}) {
		return
	}
	var disks []string
	if os.Getpid() == 1 { // elsewhere they are not the sandbox's alone
		disks = memoryDisks(s.opts.Workspace)
	}
	used := residentAnd(disks, l.Memory)
	if isGVisor() {
		used = func(family) int64 { return ownMemory() }
	}
	for {
		select {
		case <-s.begun:
		case <-done:
			return
		}
		for s.busy() {
			select {
			case <-time.After(watchEvery):
			case <-done:
				return
			}
			if s.busy() {
				s.keep(l, used)
			}
		}
	}
}

// keep looks once, and ends the exec that uses most if all together use too much.
func (s *supervisor) keep(l Limits, used func(family) int64) {
	f := readFamily(nobody)
	f.leaveOut(s.allNurseries())
	memory, tasks := used(f), 0
	for p := range f.programs() {
		tasks += p.threads
	}
	switch {
	case l.Memory > 0 && memory > l.Memory && s.giveWay():
		// In gVisor spares are in the sum. The next look tells what is left without.
	case l.Memory > 0 && memory > l.Memory:
		s.endLargest(f, wire.ReasonOOM, fmt.Sprintf("the sandbox's programs and files used %d MiB of memory; the limit is %d MiB", memory>>20, l.Memory>>20),
			func(p process) int64 { return p.rss })
	case l.Processes > 0 && tasks > l.Processes:
		s.endLargest(f, wire.ReasonSignaled, fmt.Sprintf("killed: the sandbox had %d processes and threads; the limit is %d", tasks, l.Processes),
			func(p process) int64 { return int64(p.threads) })
	}
}

// leaveOut removes spare interpreters: no program is killed for them.
func (f family) leaveOut(nurseries []*nursery) {
	for _, n := range nurseries {
		session, _, ok := n.root()
		for pid, p := range f.procs {
			if ok && p.sid == session {
				delete(f.procs, pid)
			}
		}
	}
}

// endLargest kills the exec whose processes together have the largest size.
// Those that nobody can be shown to own count for the exec that started last.
func (s *supervisor) endLargest(f family, why wire.Reason, message string, size func(process) int64) {
	r := s.roots()
	sizes := map[string]int64{}
	for p := range f.programs() {
		id, _ := f.owner(p.pid, r)
		sizes[id] += size(p)
	}
	s.mu.Lock()
	var victim *execution
	for id, e := range s.execs {
		if e.ended() != nil {
			continue
		}
		if victim == nil || sizes[id] > sizes[victim.id] || sizes[id] == sizes[victim.id] && e.started.After(victim.started) {
			victim = e
		}
	}
	s.mu.Unlock()
	if victim != nil {
		victim.kill(why, message)
	}
}

// inGVisor reports whether gVisor's kernel runs this program.
func inGVisor() bool {
	text, _ := os.ReadFile("/proc/version")
	return bytes.Contains(bytes.ToLower(text), []byte("gvisor"))
}

// ownMemory is what gVisor says of its whole sandbox: anonymous memory and
// tmpfs, without what it holds of the host's files.
func ownMemory() int64 {
	text, err := readRaw("/proc/meminfo")
	if err != nil {
		return 0
	}
	return kibibytes(text, "Active(anon):", 0)
}

// kibibytes reads the number behind a name, in bytes.
func kibibytes(text []byte, name string, otherwise int64) int64 {
	_, after, found := bytes.Cut(text, []byte(name))
	fields := bytes.Fields(after)
	if !found || len(fields) == 0 {
		return otherwise
	}
	kib, err := strconv.ParseInt(string(fields[0]), 10, 64)
	if err != nil {
		return otherwise
	}
	return kib << 10
}

// residentAnd adds up the memory of processes and of files. What processes share
// is found out, which takes the kernel longer, only when it would matter.
func residentAnd(disks []string, limit int64) func(family) int64 {
	return func(f family) int64 {
		files := onDisks(disks)
		n := files
		for p := range f.programs() {
			n += p.rss
		}
		if n <= limit {
			return n
		}
		n = files
		for p := range f.programs() {
			n += proportional(p)
		}
		return n
	}
}

// proportional is a process's memory with its part of what it shares; all of it
// where the kernel does not tell.
func proportional(p process) int64 {
	text, err := readRaw(procFile(p.pid, "smaps_rollup"))
	if err != nil {
		return p.rss
	}
	return kibibytes(text, "\nPss:", p.rss)
}

// memoryDisks are the folders for files whose file systems are memory, each file
// system once.
func memoryDisks(workspace string) []string {
	var found []string
	var seen []uint64
	for _, dir := range []string{workspace, os.TempDir(), os.Getenv("HOME"), "/dev/shm"} {
		var fs unix.Statfs_t
		var st unix.Stat_t
		if dir == "" || unix.Statfs(dir, &fs) != nil || fs.Type != unix.TMPFS_MAGIC || unix.Stat(dir, &st) != nil {
			continue
		}
		if dev := uint64(st.Dev); !slices.Contains(seen, dev) { //nolint:unconvert // its type differs by architecture
			seen = append(seen, dev)
			found = append(found, filepath.Clean(dir))
		}
	}
	return found
}

// onDisks is how many bytes are kept there.
func onDisks(dirs []string) int64 {
	var n int64
	for _, dir := range dirs {
		var fs unix.Statfs_t
		if unix.Statfs(dir, &fs) == nil {
			n += int64(fs.Blocks-fs.Bfree) * fs.Bsize
		}
	}
	return n
}

// What stays free below the memory at which the kernel ends a sandbox, or a process of
// it. The runner looks every watchEvery: what a program takes meanwhile must fit, and so
// must the runner, which is not in its own sum.
const (
	// memoryReserve is the least, in bytes; memoryShare is the least part of the limit.
	memoryReserve = 16 << 20
	memoryShare   = 20
	// gvisorReserve is what gVisor's kernel itself has of the limit besides, in bytes:
	// 25 to 30 MB were measured on the host, which no figure in the sandbox shows.
	gvisorReserve = 32 << 20
)

// belowKernel is the memory at which the runner acts where the kernel does at limit.
// Programs keep half of it in any case. 0 is no bound.
func belowKernel(limit int64, gvisor bool) int64 {
	reserve := max(memoryReserve, limit/memoryShare)
	if gvisor {
		reserve += gvisorReserve
	}
	return max(limit-reserve, limit/2)
}

// LimitsFromEnviron reads SANDBOX_MEMORY_LIMIT, the bytes at which the kernel acts, and
// stays below it; or SANDBOX_PROGRAM_MEMORY_LIMIT, which is taken as it is; and
// SANDBOX_PROCESS_LIMIT. One that is not set, or no number, is no bound.
func LimitsFromEnviron() Limits {
	var l Limits
	l.Memory, _ = strconv.ParseInt(os.Getenv("SANDBOX_PROGRAM_MEMORY_LIMIT"), 10, 64)
	if l.Memory == 0 {
		kernel, _ := strconv.ParseInt(os.Getenv("SANDBOX_MEMORY_LIMIT"), 10, 64)
		l.Memory = belowKernel(kernel, isGVisor())
	}
	l.Processes, _ = strconv.Atoi(os.Getenv("SANDBOX_PROCESS_LIMIT"))
	return l
}

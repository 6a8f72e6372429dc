package runner

import (
	"bytes"
	"errors"
	"iter"
	"os"
	"strconv"
	"time"

	"golang.org/x/sys/unix"
)

// execVar names the exec a process belongs to in its environment. Programs may
// read it; it is how a daemon that left its session is still found.
const execVar = "SANDBOX_EXEC_ID"

const (
	// killRounds bounds the sweeps over /proc that end a process tree.
	killRounds = 100
	// killPause is the pause between two sweeps, for the killed to be gone.
	killPause = 2 * time.Millisecond
)

// process is one entry of /proc.
type process struct {
	pid, ppid, sid int
	threads        int
	rss            int64 // resident memory, in bytes
	dead           bool  // a zombie: nothing left to kill
	user, system   time.Duration
}

// clockTick is the unit of times in /proc, on every architecture.
const clockTick = 10 * time.Millisecond

// roots are what shows whose a process is: the sessions that the first processes
// of execs lead, and marks that stand for an exec's ID.
type roots struct {
	sessions map[int]string
	marks    map[string]string
}

// family says which processes are whose. It is a snapshot.
type family struct {
	self  int
	procs map[int]process
}

// readFamily lists all processes of the sandbox. It does not look at the runner itself,
// nor at those that are known to be first processes of the runner's: each leads a
// session.
func readFamily(known func(pid int) bool) family {
	f := family{self: os.Getpid(), procs: map[int]process{}}
	for _, pid := range processIDs() {
		switch {
		case pid == f.self:
			f.procs[pid] = process{pid: pid}
		case known(pid):
			f.procs[pid] = process{pid: pid, ppid: f.self, sid: pid}
		default:
			if p, ok := statOf(pid); ok { // else it has just ended
				f.procs[pid] = p
			}
		}
	}
	return f
}

// statOf reads what /proc says of a process.
func statOf(pid int) (process, bool) {
	stat, err := readRaw(procFile(pid, "stat"))
	if err != nil {
		return process{}, false
	}
	return parseStat(pid, stat)
}

func procFile(pid int, name string) string { return "/proc/" + strconv.Itoa(pid) + "/" + name }

// nobody knows no process.
func nobody(int) bool { return false }

// parseStat reads the fields of /proc/PID/stat, proc(5), that matter here. The
// command's name may hold spaces and parentheses: fields count from its last one.
func parseStat(pid int, stat []byte) (process, bool) {
	i := bytes.LastIndexByte(stat, ')')
	if i < 0 {
		return process{}, false
	}
	fields := bytes.Fields(stat[i+1:])
	// The first is field 3 of proc(5): state, ppid, pgrp, session; utime and stime
	// are fields 14 and 15, num_threads is field 20 and rss field 24.
	if len(fields) < 22 {
		return process{}, false
	}
	ppid, err1 := strconv.Atoi(string(fields[1]))
	sid, err2 := strconv.Atoi(string(fields[3]))
	threads, err3 := strconv.Atoi(string(fields[17]))
	pages, err4 := strconv.ParseInt(string(fields[21]), 10, 64)
	utime, err5 := strconv.ParseInt(string(fields[11]), 10, 64)
	stime, err6 := strconv.ParseInt(string(fields[12]), 10, 64)
	if errors.Join(err1, err2, err3, err4, err5, err6) != nil {
		return process{}, false
	}
	state := fields[0][0]
	return process{
		pid: pid, ppid: ppid, sid: sid, threads: threads, rss: pages * int64(os.Getpagesize()),
		dead: state == 'Z' || state == 'X',
		user: time.Duration(utime) * clockTick, system: time.Duration(stime) * clockTick,
	}, true
}

// programs are the living processes that descend from the runner. One that was
// put into the sandbox from outside, like connect, does not.
func (f family) programs() iter.Seq[process] {
	return func(yield func(process) bool) {
		for pid, p := range f.procs {
			if pid != f.self && !p.dead && f.descends(p) && !yield(p) {
				return
			}
		}
	}
}

// descends reports whether the runner is among a process's parents: orphans come
// to it.
func (f family) descends(p process) bool {
	for range len(f.procs) {
		if p.ppid == f.self {
			return true
		}
		var ok bool
		if p, ok = f.procs[p.ppid]; !ok {
			return false
		}
	}
	return false
}

// owner tells to which of the roots (first processes of execs, by ID) a process
// belongs: by session, by the exec's mark in its environment, or through its
// parents. orphan says that it is a child of the runner that nothing explains:
// one that took pains to look like nobody's.
func (f family) owner(pid int, r roots) (id string, orphan bool) {
	for range len(f.procs) {
		p, ok := f.procs[pid]
		if !ok || pid == f.self {
			return "", false
		}
		if id, ok := r.sessions[p.sid]; ok {
			return id, false
		}
		if mark := markOf(pid); mark != "" {
			if id, ok := r.marks[mark]; ok {
				return id, false
			}
			return mark, false
		}
		if p.ppid == f.self {
			return "", true
		}
		pid = p.ppid
	}
	return "", false
}

// markOf reads execVar from a process's environment.
func markOf(pid int) string {
	env, err := readRaw(procFile(pid, "environ"))
	if err != nil {
		return ""
	}
	for v := range bytes.SplitSeq(env, []byte{0}) {
		if id, ok := bytes.CutPrefix(v, []byte(execVar+"=")); ok {
			return string(id)
		}
	}
	return ""
}

// doomed lists the living processes that end with the exec id: its own, and the
// orphans nobody can be shown to own.
func (f family) doomed(id string, r roots, keep func(pid int) bool) []int {
	var pids []int
	for p := range f.programs() {
		if keep(p.pid) {
			continue
		}
		owner, orphan := f.owner(p.pid, r)
		if orphan || owner == id {
			pids = append(pids, p.pid)
		}
	}
	return pids
}

// killTree kills every process of an exec whose first process has ended, until a
// sweep finds none. It reports whether none was left in time.
func (s *supervisor) killTree(e *execution) bool {
	left := func() []int { return readFamily(s.spares).doomed(e.id, s.rootsWith(e), s.spares) }
	for range killRounds {
		pids := left()
		if len(pids) == 0 {
			return true
		}
		for _, pid := range pids {
			_ = unix.Kill(pid, unix.SIGKILL) // it may be gone already
		}
		time.Sleep(killPause)
	}
	if os.Getpid() != 1 {
		return false
	}
	// Something forks faster than a sweep takes. As the first process this hits
	// all others at once: every exec of the lease, but nothing outside it.
	_ = unix.Kill(-1, unix.SIGKILL)
	return len(left()) == 0
}

package runner

import (
	"errors"
	"os"
	"os/signal"
	"sync"
	"syscall"

	"golang.org/x/sys/unix"
)

// exitStatus is what wait reported of one process.
type exitStatus struct {
	status unix.WaitStatus
	usage  unix.Rusage
}

// reaper waits for every child: those that were started here, whose status goes
// to who started them, and orphans, whose status nobody wants.
type reaper struct {
	// mu makes "fork and remember" one step: without it a child could be reaped
	// before its owner is known. It is held over fork and exec for that reason.
	mu       sync.Mutex
	children map[int]chan<- exitStatus // by process ID
	closed   bool

	signals chan os.Signal
	done    chan struct{}
}

func newReaper() *reaper {
	r := &reaper{children: map[int]chan<- exitStatus{}, signals: make(chan os.Signal, 1), done: make(chan struct{})}
	signal.Notify(r.signals, unix.SIGCHLD)
	go r.loop()
	return r
}

func (r *reaper) loop() {
	defer close(r.done)
	for range r.signals {
		// One signal may stand for many children.
		for r.reapOne() {
		}
	}
}

// look has the children looked at without a signal.
func (r *reaper) look() {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.closed {
		return
	}
	select {
	case r.signals <- unix.SIGCHLD:
	default:
	}
}

func (r *reaper) reapOne() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	var s exitStatus
	pid, err := unix.Wait4(-1, &s.status, unix.WNOHANG, &s.usage)
	for errors.Is(err, unix.EINTR) {
		pid, err = unix.Wait4(-1, &s.status, unix.WNOHANG, &s.usage)
	}
	if err != nil || pid <= 0 {
		return false
	}
	if owner, ok := r.children[pid]; ok {
		delete(r.children, pid)
		owner <- s // has room for one: see start
	}
	return true
}

// start forks and executes; the status comes on the channel once.
func (r *reaper) start(path string, argv []string, attr *syscall.ProcAttr) (pid int, ended <-chan exitStatus, err error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	pid, err = syscall.ForkExec(path, argv, attr) //nolint:gosec // to start what it is told to is what the runner is for
	if err != nil {
		return 0, nil, err
	}
	c := make(chan exitStatus, 1)
	r.children[pid] = c
	return pid, c, nil
}

// owns reports whether pid is a process that was started here and not yet reaped.
func (r *reaper) owns(pid int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	_, ok := r.children[pid]
	return ok
}

// kill signals a process only while it has not been reaped, so that a number
// which the kernel gave away again is never hit. group signals its whole group.
func (r *reaper) kill(pid int, group bool, sig unix.Signal) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, ok := r.children[pid]; !ok {
		return
	}
	if group {
		pid = -pid
	}
	_ = unix.Kill(pid, sig) // it may have just ended
}

func (r *reaper) close() {
	signal.Stop(r.signals)
	r.mu.Lock()
	r.closed = true
	close(r.signals)
	r.mu.Unlock()
	<-r.done
}

package scale

import (
	"fmt"
	"os"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// spareDescriptors is what a process needs beside one descriptor a sandbox.
const spareDescriptors = 200

// DescriptorsError says that the machine allows too few open files to measure.
type DescriptorsError struct{ Need, Allowed uint64 }

// Error says what would help.
func (e *DescriptorsError) Error() string {
	return fmt.Sprintf("a process may open %d files here, and %d are needed: raise the hard limit (ulimit -Hn), or hold fewer leases", e.Allowed, e.Need)
}

// allowDescriptors raises the limit on open files to need, for this process and
// those it starts.
func allowDescriptors(need uint64) error {
	var l unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_NOFILE, &l); err != nil {
		return fmt.Errorf("scale: reading the limit on open files: %w", err)
	}
	// The system call of package syscall, because it tells the Go runtime: that
	// would give children the limit with which this process started.
	want := syscall.Rlimit{Cur: max(l.Cur, need), Max: max(l.Max, need)}
	if syscall.Setrlimit(syscall.RLIMIT_NOFILE, &want) == nil {
		return nil
	}
	return &DescriptorsError{Need: need, Allowed: l.Max}
}

// UseCores keeps this program, and all it starts, to n processors: where there are
// more, it starts itself again on the first n. Call it before anything else.
func UseCores(n int) error {
	if runtime.NumCPU() <= n {
		return nil
	}
	var all, some unix.CPUSet
	runtime.LockOSThread() // the set is the thread's, and what it executes inherits it
	defer runtime.UnlockOSThread()
	if err := unix.SchedGetaffinity(0, &all); err != nil {
		return fmt.Errorf("scale: finding the processors: %w", err)
	}
	for cpu := 0; some.Count() < n; cpu++ {
		if all.IsSet(cpu) {
			some.Set(cpu)
		}
	}
	if err := unix.SchedSetaffinity(0, &some); err != nil {
		return fmt.Errorf("scale: choosing %d processors: %w", n, err)
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("scale: finding this program: %w", err)
	}
	return fmt.Errorf("scale: starting again: %w", unix.Exec(self, os.Args, os.Environ()))
}

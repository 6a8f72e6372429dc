package scale

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// tick is the unit of a process's times in /proc: USER_HZ is 100 on every Linux.
const tick = time.Second / 100

// cpuOf is the processor time that a process has used, to a tick.
func cpuOf(pid int) (time.Duration, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, fmt.Errorf("scale: reading a process's times: %w", err)
	}
	// The second field is a name in brackets and may hold anything; the times are
	// the 14th and 15th of all.
	line := string(b)
	fields := strings.Fields(line[strings.LastIndexByte(line, ')')+1:])
	if len(fields) < 13 {
		return 0, fmt.Errorf("scale: the times of process %d are not where they should be", pid)
	}
	user, err1 := strconv.ParseInt(fields[11], 10, 64)
	system, err2 := strconv.ParseInt(fields[12], 10, 64)
	return time.Duration(user+system) * tick, errors.Join(err1, err2)
}

// ownCPU is the processor time that this process has used.
func ownCPU() time.Duration {
	var r unix.Rusage
	if unix.Getrusage(unix.RUSAGE_SELF, &r) != nil {
		return 0 // it cannot fail for oneself
	}
	return time.Duration(r.Utime.Nano() + r.Stime.Nano())
}

// busyCPU is the processor time that all programs together have used on the
// processors that this one may use.
func busyCPU() (time.Duration, error) {
	var ours unix.CPUSet
	if err := unix.SchedGetaffinity(0, &ours); err != nil {
		return 0, fmt.Errorf("scale: finding the processors: %w", err)
	}
	b, err := os.ReadFile("/proc/stat")
	if err != nil {
		return 0, fmt.Errorf("scale: reading the processors' times: %w", err)
	}
	var busy time.Duration
	for line := range strings.Lines(string(b)) {
		fields := strings.Fields(line)
		cpu, err := strconv.Atoi(strings.TrimPrefix(fields[0], "cpu"))
		if err != nil || !strings.HasPrefix(fields[0], "cpu") || !ours.IsSet(cpu) {
			continue
		}
		// user, nice, system, idle, iowait, irq, softirq, steal; what follows is
		// counted in these.
		for i, f := range fields[1:min(9, len(fields))] {
			n, err := strconv.ParseInt(f, 10, 64)
			if err != nil {
				return 0, fmt.Errorf("scale: reading the processors' times: %w", err)
			}
			if i != 3 && i != 4 {
				busy += time.Duration(n) * tick
			}
		}
	}
	return busy, nil
}

// footprint is what this process holds. Sizes are bytes.
type footprint struct {
	RSS         int64 // resident, as it is: with garbage that is not collected yet
	Settled     int64 // resident after a collection that gave all it could back
	Heap        int64 // live objects after that collection
	Stacks      int64 // stacks of goroutines
	Goroutines  int
	Descriptors int
}

// settled is how many collections come before the memory of a process at rest is
// read: one halves a stack at most, and pools need two to let go.
const settled = 4

// measure takes the process's footprint, after some collections of garbage.
func measure(collections int) (footprint, error) {
	var f footprint
	var err error
	if f.RSS, err = resident(); err != nil {
		return f, err
	}
	for range collections - 1 {
		runtime.GC()
	}
	debug.FreeOSMemory() // the last one
	if f.Settled, err = resident(); err != nil {
		return f, err
	}
	samples := []metrics.Sample{{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/memory/classes/heap/stacks:bytes"}}
	metrics.Read(samples)
	f.Heap, f.Stacks = int64(samples[0].Value.Uint64()), int64(samples[1].Value.Uint64())
	f.Goroutines = runtime.NumGoroutine()
	open, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return f, fmt.Errorf("scale: counting descriptors: %w", err)
	}
	f.Descriptors = len(open)
	return f, nil
}

// resident is this process's resident memory.
func resident() (int64, error) {
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0, fmt.Errorf("scale: reading the resident memory: %w", err)
	}
	var size, pages int64
	if _, err := fmt.Sscan(string(b), &size, &pages); err != nil {
		return 0, fmt.Errorf("scale: reading the resident memory: %w", err)
	}
	return pages * int64(os.Getpagesize()), nil
}

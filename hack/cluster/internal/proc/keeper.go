package proc

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"syscall"
	"time"
)

const (
	// pollEvery is how often a wait for the end of a process looks.
	pollEvery = 50 * time.Millisecond
	// killWait bounds the wait for a process after SIGKILL.
	killWait = 10 * time.Second
)

// Command describes a process to keep running.
type Command struct {
	Name string
	// Args is the program, by absolute path, and its arguments.
	Args []string
	// Env is the whole environment.
	Env []string
	// Inputs is the content of the configuration files that the program reads
	// at its start: when it changes, the program is started anew.
	Inputs [][]byte
	// Again has the program started anew, a second later, whenever it ends by itself, as
	// an init system does.
	Again bool
}

// again runs a program again and again until it is told to end. The shell waits with a
// builtin, so that it hears that at once.
const again = `trap 'kill "$pid"; wait "$pid"; exit' TERM
while :; do "$@" & pid=$!; wait "$pid"; sleep 1 & pid=$!; wait "$pid"; done`

// args is what is executed.
func (c Command) args() []string {
	if !c.Again {
		return c.Args
	}
	return append([]string{"/bin/sh", "-c", again, c.Name}, c.Args...)
}

// spec is a digest of all that decides how the process behaves.
func (c Command) spec() (string, error) {
	h := sha256.New()
	for _, list := range [][]string{c.Args, c.Env} {
		for _, s := range list {
			fmt.Fprintf(h, "%d:%s", len(s), s)
		}
	}
	// The program may be a link into a cache that names versions.
	target, err := filepath.EvalSymlinks(c.Args[0])
	if err != nil {
		return "", fmt.Errorf("finding the program of %s: %w", c.Name, err)
	}
	fmt.Fprint(h, target)
	if c.Again {
		fmt.Fprint(h, again)
	}
	for _, in := range c.Inputs {
		fmt.Fprintf(h, "%d:%s", len(in), in)
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// Joiner takes a new process into the group by which the cluster's processes
// are recognised (see package cgroups).
type Joiner interface{ Add(pid int) error }

// Keeper starts and stops processes and holds their records and logs.
type Keeper struct {
	// Dir holds the records, Logs one file for each process.
	Dir, Logs string
	Group     Joiner
}

// Ensure makes c run: it starts c when it does not run, restarts it when it was
// started differently, and else leaves it alone. It reports whether it started.
func (k Keeper) Ensure(ctx context.Context, c Command, stopWait time.Duration) (bool, error) {
	spec, err := c.spec()
	if err != nil {
		return false, err
	}
	r, known, err := load(k.Dir, c.Name)
	if err != nil {
		return false, err
	}
	if known && r.Same() {
		if r.Spec == spec {
			return false, nil
		}
		if err := k.Stop(ctx, c.Name, stopWait); err != nil {
			return false, err
		}
	}
	return true, k.start(c, spec)
}

func (k Keeper) start(c Command, spec string) error {
	boot, err := BootID()
	if err != nil {
		return fmt.Errorf("reading the boot ID: %w", err)
	}
	log, err := os.OpenFile(k.LogPath(c.Name), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return fmt.Errorf("opening the log of %s: %w", c.Name, err)
	}
	defer log.Close()
	args := c.args()
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env, cmd.Dir = c.Env, "/"
	cmd.Stdout, cmd.Stderr = log, log
	// A session of its own: it outlives this program and its terminal.
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if err := keepDescriptors(); err != nil {
		return fmt.Errorf("starting %s: %w", c.Name, err)
	}
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("starting %s: %w", c.Name, err)
	}
	if err := k.adopt(cmd.Process.Pid, c.Name, boot, spec); err != nil {
		return errors.Join(err, cmd.Process.Kill(), cmd.Wait())
	}
	// Reaps it in case it ends while this program still runs.
	go func() { _ = cmd.Wait() }()
	return nil
}

// keepDescriptors sees to it that no started process inherits what this one did, such as
// a lock that a script holds around it: it would hold it for as long as it runs.
func keepDescriptors() error {
	names, err := os.ReadDir("/proc/self/fd")
	if err != nil {
		return fmt.Errorf("listing descriptors: %w", err)
	}
	for _, name := range names {
		if fd, err := strconv.Atoi(name.Name()); err == nil && fd > 2 {
			syscall.CloseOnExec(fd)
		}
	}
	return nil
}

// adopt records the new process and takes it into the group.
func (k Keeper) adopt(pid int, name, boot, spec string) error {
	st, err := readStat(pid)
	if err != nil {
		return fmt.Errorf("reading the start time of %s: %w", name, err)
	}
	err = save(k.Dir, Record{
		Name: name, PID: pid, StartTicks: st.startTicks, BootID: boot, Spec: spec, Started: time.Now().UTC(),
	})
	if err != nil {
		return err
	}
	if err := k.Group.Add(pid); err != nil {
		return fmt.Errorf("grouping %s: %w", name, err)
	}
	return nil
}

// Lookup returns the record of name if that very process still runs.
func (k Keeper) Lookup(name string) (Record, bool, error) {
	r, known, err := load(k.Dir, name)
	return r, known && r.Same(), err
}

// Stop asks the process to end, waits, and after the wait kills it. Stopping
// what does not run is no error.
func (k Keeper) Stop(ctx context.Context, name string, wait time.Duration) error {
	r, running, err := k.Lookup(name)
	if err != nil {
		return err
	}
	if running {
		if err := end(ctx, r, wait); err != nil {
			return fmt.Errorf("stopping %s (process %d): %w", name, r.PID, err)
		}
	}
	if err := os.Remove(recordPath(k.Dir, name)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("removing the record of %s: %w", name, err)
	}
	return nil
}

func end(ctx context.Context, r Record, wait time.Duration) error {
	if gone, err := signal(ctx, r, syscall.SIGTERM, wait); gone || err != nil {
		return err
	}
	return kill(ctx, r)
}

// kill ends a process as a crash would.
func kill(ctx context.Context, r Record) error {
	gone, err := signal(ctx, r, syscall.SIGKILL, killWait)
	if err == nil && !gone {
		err = errors.New("still there after SIGKILL")
	}
	return err
}

// signal sends a signal and reports whether the process ended within the wait.
func signal(ctx context.Context, r Record, s syscall.Signal, wait time.Duration) (bool, error) {
	if err := syscall.Kill(r.PID, s); err != nil && !errors.Is(err, syscall.ESRCH) {
		return false, err
	}
	return awaitEnd(ctx, r, wait)
}

func awaitEnd(ctx context.Context, r Record, wait time.Duration) (bool, error) {
	deadline := time.NewTimer(wait)
	defer deadline.Stop()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		if !r.Same() {
			return true, nil
		}
		select {
		case <-ctx.Done():
			return false, ctx.Err()
		case <-deadline.C:
			return false, nil
		case <-tick.C:
		}
	}
}

// LogPath is where the output of the process goes.
func (k Keeper) LogPath(name string) string { return filepath.Join(k.Logs, name+".log") }

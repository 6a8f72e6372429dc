package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"

	"github.com/sandbox-broker/sandbox-broker/broker"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// runtime makes sandboxes of processes. Its methods are safe for concurrent use.
type runtime interface {
	// isolation is what sandboxes say isolates them.
	isolation() string
	// refuses says why a pool cannot work here; asked are the limits that its
	// admin set, before defaults. nil: it can.
	refuses(c Pool, asked Limits) error
	// prepare makes a pool's root file system.
	prepare(ctx context.Context, c Pool) (rootFS, error)
	// command is the sandbox itself: the runner says on its standard output when
	// it listens.
	command(s *sandbox) (*exec.Cmd, error)
	// connect is a process whose standard input and output are a channel.
	connect(s *sandbox) *exec.Cmd
	// fate tells from the process's end how the sandbox died.
	fate(s *sandbox, err error) broker.Fate
	// remove removes what of the sandbox outlives its process, except dir. It may
	// be called for one of which nothing was made.
	remove(name, dir string) error
	// close removes what sandboxes shared, of this broker or a killed one.
	close() error
}

// Limits bound what a sandbox may use. Zero values mean the defaults given here.
type Limits struct {
	Memory    int64   // bytes, of programs and of what they keep in files; default 512 MiB
	Processes int     // and threads, together; default 256
	Disk      int64   // bytes, of each of the workspace, HOME and /tmp; default a quarter of Memory
	CPUs      float64 // default: as many as this machine has
}

// Defaults and bounds of Limits.
const (
	defaultMemory    = 512 << 20
	minMemory        = 32 << 20
	defaultProcesses = 256
)

func (l Limits) withDefaults() Limits {
	if l.Memory == 0 {
		l.Memory = defaultMemory
	}
	if l.Processes == 0 {
		l.Processes = defaultProcesses
	}
	if l.Disk == 0 {
		l.Disk = l.Memory / 4
	}
	return l
}

// Check reports the first limit that cannot work, as a *wire.Error that names it
// by its key in the configuration file.
func (l Limits) Check() error {
	l = l.withDefaults()
	switch {
	case l.Memory < minMemory:
		return wire.Invalid("local.memory", minMemory, "%d bytes are too few: an interpreter needs at least %d", l.Memory, minMemory)
	case l.Processes < 8:
		return wire.Invalid("local.processes", 8, "at least 8 are needed, not %d", l.Processes)
	case l.Disk < 0 || l.Disk > l.Memory:
		return wire.Invalid("local.disk", l.Memory, "%d bytes must lie between 1 and the memory's %d, where files are kept", l.Disk, l.Memory)
	case l.CPUs < 0 || l.CPUs > 0 && l.CPUs < 0.01:
		return wire.Invalid("local.cpus", 0, "%g must be at least 0.01", l.CPUs)
	}
	return nil
}

// environ is what the runner in a sandbox is told by its environment.
func (l Limits) environ() []string {
	return []string{
		"SANDBOX_MEMORY_LIMIT=" + strconv.FormatInt(l.Memory, 10),
		"SANDBOX_PROCESS_LIMIT=" + strconv.Itoa(l.Processes),
	}
}

func newRuntime(o Options, st *state) (runtime, error) {
	runner, err := findProgram("sandbox-runner", o.Runner)
	if err != nil {
		return nil, fmt.Errorf("local: %w; build it with `make build`, or set provider.local.runner", err)
	}
	switch o.Runtime {
	case "", RuntimeRunsc:
		runsc, err := findProgram("runsc", o.Runsc)
		if err != nil {
			return nil, &NoRunscError{err}
		}
		return newRunsc(runsc, runner, st), nil
	case RuntimeProcess:
		return &processRuntime{runner: runner}, nil
	}
	return nil, wire.Invalid("provider.local.runtime", 0, "%q is neither %s nor %s", o.Runtime, RuntimeRunsc, RuntimeProcess)
}

// NoRunscError says that there is no gVisor here; its message names the two ways
// out.
type NoRunscError struct{ err error }

// Error implements error.
func (e *NoRunscError) Error() string {
	return fmt.Sprintf("local: %v; build it with `make runsc` (or install gVisor), or run without any isolation: --insecure-no-isolation", e.err)
}

// Unwrap implements errors.Unwrap.
func (e *NoRunscError) Unwrap() error { return e.err }

// findProgram returns the absolute path of a program: the one that is given, or
// the one beside this program, or the one on PATH.
func findProgram(name, given string) (string, error) {
	if given != "" {
		path, err := exec.LookPath(given)
		if err != nil {
			return "", fmt.Errorf("%s: %w", name, err)
		}
		return filepath.Abs(path)
	}
	self, err := os.Executable()
	if err != nil {
		return "", fmt.Errorf("finding %s: %w", name, err)
	}
	beside := filepath.Join(filepath.Dir(self), name)
	if path, err := exec.LookPath(beside); err == nil {
		return path, nil
	}
	path, err := exec.LookPath(name)
	if err != nil {
		return "", fmt.Errorf("%s is neither beside this program (%s) nor on PATH", name, filepath.Dir(beside))
	}
	return filepath.Abs(path)
}

// exitCode is how a process ended, as a shell would say it.
func exitCode(err error) int {
	var exit *exec.ExitError
	if errors.As(err, &exit) {
		return exit.ExitCode()
	}
	return 0
}

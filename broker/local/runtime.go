//go:build linux

package local

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

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

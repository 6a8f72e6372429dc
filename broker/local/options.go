package local

import (
	"fmt"
	"log/slog"
	"strconv"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// Options configure a Provider.
type Options struct {
	// Runtime isolates the sandboxes; empty is RuntimeRunsc.
	Runtime RuntimeName
	// Runsc is the path of runsc; empty looks beside this program and on PATH.
	Runsc string
	// Runner is the path of sandbox-runner, which must be static; empty looks
	// beside this program and on PATH.
	Runner string
	// StateDir is where everything of this broker is kept, and nothing else;
	// empty is a folder for Instance below /run or the user's runtime folder.
	StateDir string
	// Instance tells brokers on one machine apart; empty is "default".
	Instance string
	Pools    []Pool
	Log      *slog.Logger // nil: discarded
}

// Pool is what the sandboxes of one pool are made of.
type Pool struct {
	Name string
	// RootFS is a folder, or an OCI or Docker archive; empty is a read-only view
	// of this machine's programs.
	RootFS  string
	Warm    int     // sandboxes started ahead
	Network Network // default NetworkNone
	Limits  Limits
}

// Network says what a sandbox can reach.
type Network string

// The networks.
const (
	// NetworkNone is a loopback of the sandbox's own.
	NetworkNone Network = "none"
	// NetworkHost is this machine's network, its loopback services included.
	NetworkHost Network = "host"
)

// RuntimeName names what isolates the sandboxes.
type RuntimeName string

// The runtimes.
const (
	RuntimeRunsc   RuntimeName = "runsc"
	RuntimeProcess RuntimeName = "process"
)

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
	maxProcesses     = 4096
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
	case l.Processes < 8 || l.Processes > maxProcesses:
		return wire.Invalid("local.processes", maxProcesses, "%d must lie between 8 and %d", l.Processes, maxProcesses)
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
		"SANDBOX_PROGRAM_MEMORY_LIMIT=" + strconv.FormatInt(l.Memory, 10),
		"SANDBOX_PROCESS_LIMIT=" + strconv.Itoa(l.Processes),
	}
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

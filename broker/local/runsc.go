//go:build linux

package local

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"

	"golang.org/x/sys/unix"

	"github.com/sandbox-broker/sandbox-broker/broker"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// gvisorIsolation is what sandboxes of the runsc runtime say isolates them.
const gvisorIsolation = "gvisor"

// runscRuntime isolates each sandbox with gVisor. As root it has control groups;
// without root the runner in the sandbox keeps the limits alone.
type runscRuntime struct {
	runsc, runner string
	state         *state
	groups        groups
	rootless      bool
}

func newRunsc(runsc, runner string, st *state) *runscRuntime {
	return &runscRuntime{runsc: runsc, runner: runner, state: st, groups: newGroups(st.dir), rootless: os.Geteuid() != 0}
}

func (r *runscRuntime) isolation() string { return gvisorIsolation }

// limited reports whether sandboxes get a control group.
func (r *runscRuntime) limited() bool { return !r.rootless && r.groups.available() == nil }

func (r *runscRuntime) refuses(c Pool, asked Limits) error {
	switch {
	case r.rootless && c.Network != NetworkNone:
		return wire.NotReady(wire.ReasonConfiguration, "pool %s asks for the network %s; without root gVisor has only %s here", c.Name, c.Network, NetworkNone)
	case r.rootless && asked.CPUs > 0:
		return wire.NotReady(wire.ReasonConfiguration, "pool %s limits CPUs; that needs control groups, and those need root", c.Name)
	case asked.CPUs > 0 && !r.limited():
		return wire.NotReady(wire.ReasonConfiguration, "pool %s limits CPUs: %v", c.Name, r.groups.available())
	}
	return nil
}

func (r *runscRuntime) prepare(ctx context.Context, c Pool) (rootFS, error) {
	if c.RootFS == "" {
		return hostRoot(filepath.Join(r.state.dir, hostRootDir))
	}
	return givenRoot(ctx, c.RootFS, r.state.dir)
}

// flags are those of every call for a sandbox. Each has a root of its own, which
// goes with it; only the gofers' empty network is shared.
func (r *runscRuntime) flags(dir string, n Network) []string {
	f := []string{
		"--root=" + filepath.Join(dir, "runsc"), "--shared-root=" + filepath.Join(r.state.dir, runscDir),
		"--log=" + filepath.Join(dir, "runsc.log"), "--platform=systrap", "--overlay2=none",
		"--host-settings=ignore", "--network=" + string(n),
	}
	if r.rootless {
		f = append(f, "--rootless")
	}
	return f
}

func (r *runscRuntime) command(s *sandbox) (*exec.Cmd, error) {
	cfg := s.pool.cfg
	for _, dir := range []string{filepath.Join(s.dir, "runsc"), filepath.Join(r.state.dir, runscDir)} {
		if err := os.MkdirAll(dir, 0o700); err != nil {
			return nil, err
		}
	}
	group := ""
	if r.limited() {
		group = r.groups.path(s.id.Name)
		if err := r.groups.create(s.id.Name, cfg.Limits); err != nil {
			return nil, err
		}
	}
	text, err := json.Marshal(bundle(s.pool.root, r.runner, cfg, group))
	if err != nil {
		return nil, fmt.Errorf("encoding the bundle: %w", err)
	}
	if err := os.WriteFile(filepath.Join(s.dir, "config.json"), text, 0o600); err != nil {
		return nil, err
	}
	args := append(r.flags(s.dir, cfg.Network), "run", "--bundle", s.dir, s.id.Name)
	return r.call(args), nil
}

// call is a runsc process; nothing of the broker's environment reaches it.
func (r *runscRuntime) call(args []string) *exec.Cmd {
	cmd := exec.Command(r.runsc, args...)
	cmd.Env = []string{"PATH=/usr/sbin:/usr/bin:/sbin:/bin"}
	return cmd
}

func (r *runscRuntime) connect(s *sandbox) *exec.Cmd {
	return r.call(append(r.flags(s.dir, s.pool.cfg.Network), "exec", s.id.Name, runnerPath, "connect"))
}

func (r *runscRuntime) fate(s *sandbox, err error) broker.Fate {
	if r.limited() && r.groups.oomKilled(s.id.Name) {
		return broker.Fate{Reason: wire.ReasonOOM, Message: "the sandbox exceeded its memory limit"}
	}
	// A sandbox killed from outside looks the same.
	return lost(wire.CauseRunnerKilled, "the sandbox's first process ended (exit code %d)", exitCode(err))
}

func (r *runscRuntime) remove(name, _ string) error {
	if !r.limited() {
		return nil
	}
	return r.groups.remove(name)
}

// close removes what the sandboxes shared.
func (r *runscRuntime) close() error {
	if r.rootless {
		return nil // its network went with the user namespace
	}
	err := r.releaseNetwork()
	if r.groups.available() == nil {
		err = errors.Join(err, r.groups.close())
	}
	return err
}

// maxPins bounds how often gVisor can have mounted its empty network: sandboxes
// that start at once mount it over each other.
const maxPins = 64

// releaseNetwork unmounts the empty network that gVisor keeps for its gofers.
func (r *runscRuntime) releaseNetwork() error {
	path := filepath.Join(r.state.dir, runscDir, "null-netns")
	for range maxPins {
		err := unix.Unmount(path, unix.MNT_DETACH)
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EINVAL) {
			return nil // it does not exist, or is no mount any more
		}
		if err != nil {
			return fmt.Errorf("local: letting go of gVisor's empty network: %w", err)
		}
	}
	return nil
}

//go:build linux

package local

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-broker/sandbox-broker/broker"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// noIsolation is what sandboxes of the process runtime say isolates them.
const noIsolation = "none"

// processRuntime runs sandboxes as plain processes of this machine. It isolates
// nothing.
type processRuntime struct{ runner string }

func (r *processRuntime) isolation() string { return noIsolation }

func (r *processRuntime) refuses(c Pool, asked Limits) error {
	switch {
	case c.RootFS != "":
		return wire.NotReady(wire.ReasonConfiguration, "pool %s has a rootFS, which the runtime process cannot have", c.Name)
	case asked.CPUs > 0:
		return wire.NotReady(wire.ReasonConfiguration, "pool %s limits CPUs, which the runtime process cannot have", c.Name)
	}
	return nil
}

func (r *processRuntime) prepare(context.Context, Pool) (rootFS, error) { return rootFS{}, nil }

func (r *processRuntime) command(s *sandbox) (*exec.Cmd, error) {
	workspace := filepath.Join(s.dir, "workspace")
	for _, dir := range []string{workspace, s.home(), s.tmp()} {
		if err := os.Mkdir(dir, 0o700); err != nil {
			return nil, err
		}
	}
	cmd := exec.Command(r.runner, "serve")
	cmd.Dir = workspace
	cmd.Env = append([]string{
		"PATH=" + os.Getenv("PATH"), "HOME=" + s.home(), "TMPDIR=" + s.tmp(), "LANG=C.UTF-8",
		"SANDBOX_WORKSPACE=" + workspace, "SANDBOX_SOCKET=" + r.socket(s.id.Name),
	}, s.pool.cfg.Limits.environ()...)
	return cmd, nil
}

// homeDir is a process sandbox's home, in its folder.
const homeDir = "home"

func (s *sandbox) home() string { return filepath.Join(s.dir, homeDir) }
func (s *sandbox) tmp() string  { return filepath.Join(s.dir, "tmp") }

func (r *processRuntime) socket(name string) string { return "@sandbox-broker-" + name }

func (r *processRuntime) connect(s *sandbox) *exec.Cmd {
	cmd := exec.Command(r.runner, "connect")
	cmd.Env = []string{"SANDBOX_SOCKET=" + r.socket(s.id.Name)}
	return cmd
}

func (r *processRuntime) fate(_ *sandbox, err error) broker.Fate {
	return lost(wire.CauseRunnerKilled, "the sandbox's first process ended (%v)", describeExit(err))
}

func describeExit(err error) string {
	if err == nil {
		return "exit status 0"
	}
	return fmt.Sprint(err)
}

// killRounds bounds the looks for programs that a sandbox left.
const killRounds = 100

// remove kills the programs that the sandbox's runner could not take along, as
// when its broker was killed: they are known by the home folder that they were
// given. One that hides it escapes, as from everything else here.
func (r *processRuntime) remove(_, dir string) error {
	mark := []byte("HOME=" + filepath.Join(dir, homeDir) + "\x00")
	for range killRounds {
		environs, err := filepath.Glob("/proc/[0-9]*/environ")
		if err != nil {
			return err
		}
		left := false
		for _, path := range environs {
			text, err := os.ReadFile(path)
			if err != nil || !bytes.Contains(text, mark) {
				continue // it is another user's, or has just ended
			}
			pid, err := strconv.Atoi(filepath.Base(filepath.Dir(path)))
			if err != nil {
				return err
			}
			left = unix.Kill(pid, unix.SIGKILL) == nil || left
		}
		if !left {
			return nil
		}
		time.Sleep(removePause)
	}
	return fmt.Errorf("programs of the sandbox in %s do not end", dir)
}
func (r *processRuntime) close() error { return nil }

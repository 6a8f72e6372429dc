package runner

import (
	"fmt"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-broker/sandbox-broker/internal/channel"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// launched is the first process of an exec.
type launched struct {
	pid     int
	ended   <-chan exitStatus
	ours    [3]*os.File
	started time.Time
	spare   *spare // it was one; nil: it was started for the exec
}

// launch hands a command to a spare interpreter that does for it, or starts it.
func (s *supervisor) launch(c *command, withStdin bool) (launched, error) {
	p := launched{started: time.Now()}
	if sp := s.takeSpare(c, withStdin); sp != nil {
		p.pid, p.ended, p.ours, p.spare = sp.pid, sp.status, sp.ours, sp
		return p, nil
	}
	files, ours, err := stdio(withStdin)
	if err != nil {
		return p, err
	}
	p.ours, p.started = ours, time.Now()
	p.pid, p.ended, err = s.reaper.start(c.path, c.argv, &syscall.ProcAttr{
		Dir: c.dir, Env: c.env, Files: files, Sys: &syscall.SysProcAttr{Setsid: true},
	})
	closeAll(files, nil)
	if err != nil {
		closeAll(nil, ours[:])
		return p, wire.Invalid("program", 0, "the sandbox cannot start %q: %v", c.argv[0], err)
	}
	return p, nil
}

func closeAll(fds []uintptr, files []*os.File) {
	for _, fd := range fds {
		_ = unix.Close(int(fd))
	}
	for _, f := range files {
		if f != nil {
			_ = f.Close()
		}
	}
}

// stdio makes the program's three descriptors and our ends of them.
func stdio(withStdin bool) (files []uintptr, ours [3]*os.File, err error) {
	defer func() {
		if err != nil {
			closeAll(files, ours[:])
			files, ours = nil, [3]*os.File{}
		}
	}()
	for i := range 3 {
		if i == 0 && !withStdin {
			fd, err := unix.Open(os.DevNull, unix.O_RDONLY|unix.O_CLOEXEC, 0)
			if err != nil {
				return files, ours, fmt.Errorf("runner: opening %s: %w", os.DevNull, err)
			}
			files = append(files, uintptr(fd))
			continue
		}
		theirs, mine, err := pipe(wire.FD(i))
		if err != nil {
			return files, ours, err
		}
		files = append(files, uintptr(theirs))
		ours[i] = mine
	}
	return files, ours, nil
}

// pipe makes the pipe of one of a program's descriptors.
func pipe(fd wire.FD) (theirs int, ours *os.File, err error) {
	var p [2]int // reading end, writing end
	if err := unix.Pipe2(p[:], unix.O_CLOEXEC); err != nil {
		return -1, nil, fmt.Errorf("runner: making a pipe: %w", err)
	}
	mine, theirs := p[0], p[1]
	if fd == wire.Stdin {
		mine, theirs = p[1], p[0]
	}
	// Our end alone is non-blocking: programs expect theirs to block.
	if err := unix.SetNonblock(mine, true); err != nil {
		_ = unix.Close(mine)
		_ = unix.Close(theirs)
		return -1, nil, fmt.Errorf("runner: preparing a pipe: %w", err)
	}
	if fd != wire.Stdin { // a wish: where the user has many pipes, they are small
		_, _ = unix.FcntlInt(uintptr(mine), unix.F_SETPIPE_SZ, channel.PipeSize)
	}
	return theirs, os.NewFile(uintptr(mine), fd.String()), nil
}

package runner

import (
	"errors"
	"io"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// Small files are opened, read or written and closed here by these system calls alone.
// An os.File asks five more times whether it can be polled, and in gVisor a system call
// costs what a program of one line can feel.

// readRaw is os.ReadFile, for files of /proc: they may be longer than they say.
func readRaw(path string) ([]byte, error) {
	fd, err := openRaw(path, unix.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer func() { _ = unix.Close(fd) }()
	b := make([]byte, 0, 4<<10)
	for {
		n, err := again(func() (int, error) { return unix.Read(fd, b[len(b):cap(b)]) })
		if err != nil {
			return nil, &os.PathError{Op: "read", Path: path, Err: err}
		}
		if n == 0 {
			return b, nil
		}
		if b = b[:len(b)+n]; len(b) == cap(b) {
			b = append(b, 0)[:len(b)]
		}
	}
}

// createRaw writes a new file; it fails where there is one.
func createRaw(path string, content []byte, mode uint32) error {
	fd, err := openRaw(path, unix.O_WRONLY|unix.O_CREAT|unix.O_EXCL, mode)
	if err != nil {
		return err
	}
	for err == nil && len(content) > 0 {
		var n int
		if n, err = again(func() (int, error) { return unix.Write(fd, content) }); err == nil && n == 0 {
			err = io.ErrShortWrite
		}
		content = content[max(0, n):]
	}
	if err = errors.Join(err, unix.Close(fd)); err != nil {
		_ = unix.Unlink(path)
		return &os.PathError{Op: "write", Path: path, Err: err}
	}
	return nil
}

func openRaw(path string, flags int, mode uint32) (int, error) {
	fd, err := again(func() (int, error) { return unix.Open(path, flags|unix.O_CLOEXEC, mode) })
	if err != nil {
		return -1, &os.PathError{Op: "open", Path: path, Err: err}
	}
	return fd, nil
}

// again calls what a signal interrupts once more.
func again(call func() (int, error)) (int, error) {
	for {
		n, err := call()
		if !errors.Is(err, unix.EINTR) {
			return n, err
		}
	}
}

// processIDs are the numbers in /proc.
func processIDs() []int {
	fd, err := openRaw("/proc", unix.O_RDONLY|unix.O_DIRECTORY, 0)
	if err != nil {
		return nil
	}
	defer func() { _ = unix.Close(fd) }()
	var pids []int
	buf := make([]byte, 8<<10)
	for {
		n, err := again(func() (int, error) { return unix.ReadDirent(fd, buf) })
		if err != nil || n <= 0 {
			return pids
		}
		_, _, names := unix.ParseDirent(buf[:n], -1, nil)
		for _, name := range names {
			if pid, err := strconv.Atoi(name); err == nil {
				pids = append(pids, pid)
			}
		}
	}
}

package runner

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// connectTimeout bounds how long Connect waits for the server to listen: a
	// fresh pod is Ready before its process has come that far.
	connectTimeout = 10 * time.Second
	// connectPoll is how often it tries meanwhile.
	connectPoll = 5 * time.Millisecond
)

// Connect hands in and out to the server at socket (empty: DefaultSocket) and
// waits until the server lets go of them, or ctx ends. The files stay open here:
// a container runtime may close an exec's input when its output reaches the end
// of file.
func Connect(ctx context.Context, socket string, in, out *os.File) error {
	if err := hidden(); err != nil {
		return err
	}
	if socket == "" {
		socket = DefaultSocket
	}
	conn, err := dialServer(ctx, socket)
	if err != nil {
		return err
	}
	defer func() { _ = conn.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	defer stop()
	rights := unix.UnixRights(int(in.Fd()), int(out.Fd()))
	if _, _, err := conn.WriteMsgUnix([]byte{0}, rights, nil); err != nil {
		return fmt.Errorf("runner: handing over the descriptors: %w", err)
	}
	if _, err := io.Copy(io.Discard, conn); err != nil && !errors.Is(err, net.ErrClosed) {
		return fmt.Errorf("runner: waiting for the server: %w", err)
	}
	return ctx.Err()
}

func dialServer(ctx context.Context, socket string) (*net.UnixConn, error) {
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	tick := time.NewTicker(connectPoll)
	defer tick.Stop()
	for {
		conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: socket, Net: "unix"})
		if err == nil {
			return conn, nil
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("runner: no server on %s within %s: %w", socket, connectTimeout, err)
		case <-tick.C:
		}
	}
}

// Install copies this program into dir as "sandbox-runner", readable and
// executable for everyone: an init container brings the runner into any image.
func Install(dir string) error {
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("runner: finding itself: %w", err)
	}
	src, err := os.Open(self)
	if err != nil {
		return fmt.Errorf("runner: reading itself: %w", err)
	}
	defer func() { _ = src.Close() }()
	// Written aside and renamed: a reader never sees half of it.
	tmp, err := os.CreateTemp(dir, ".sandbox-runner-*")
	if err != nil {
		return fmt.Errorf("runner: installing into %s: %w", dir, err)
	}
	defer func() { _ = os.Remove(tmp.Name()) }()
	_, err = io.Copy(tmp, src)
	err = errors.Join(err, tmp.Chmod(0o755), tmp.Close())
	if err == nil {
		err = os.Rename(tmp.Name(), filepath.Join(dir, "sandbox-runner"))
	}
	if err != nil {
		return fmt.Errorf("runner: installing into %s: %w", dir, err)
	}
	return nil
}

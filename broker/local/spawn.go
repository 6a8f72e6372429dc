//go:build linux

package local

import (
	"errors"
	"net"
	"os"
	"os/exec"
	goruntime "runtime"
	"sync"
	"syscall"
	"time"
)

// spawner starts processes that die with this one, however it ends.
// PR_SET_PDEATHSIG is about the thread that forked (prctl(2)), and Go ends and
// makes threads as it likes; so one goroutine keeps one thread for all starts.
type spawner struct {
	jobs chan func()
	done chan struct{}
}

func newSpawner() *spawner {
	s := &spawner{jobs: make(chan func()), done: make(chan struct{})}
	go func() {
		goruntime.LockOSThread() // never unlocked: the thread ends with the goroutine
		defer close(s.done)
		for job := range s.jobs {
			job()
		}
	}()
	return s
}

// start is cmd.Start on the spawner's thread.
func (s *spawner) start(cmd *exec.Cmd) error {
	if cmd.SysProcAttr == nil {
		cmd.SysProcAttr = &syscall.SysProcAttr{}
	}
	cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	cmd.SysProcAttr.Setpgid = true // a terminal's ^C is for the broker alone
	result := make(chan error, 1)
	s.jobs <- func() { result <- cmd.Start() }
	return <-result
}

// close ends the thread, and with it whatever it started that still runs.
func (s *spawner) close() {
	close(s.jobs)
	<-s.done
}

// dial starts a command that connects its standard input and output to a
// sandbox's runner, and returns the other ends of them.
func dial(s *spawner, cmd *exec.Cmd) (*conn, error) {
	theirIn, ourOut, err := os.Pipe()
	if err != nil {
		return nil, err
	}
	ourIn, theirOut, err := os.Pipe()
	if err != nil {
		return nil, errors.Join(err, theirIn.Close(), ourOut.Close())
	}
	cmd.Stdin, cmd.Stdout = theirIn, theirOut
	err = s.start(cmd)
	_, _ = theirIn.Close(), theirOut.Close()
	if err != nil {
		return nil, errors.Join(err, ourIn.Close(), ourOut.Close())
	}
	c := &conn{in: ourIn, out: ourOut, cmd: cmd, gone: make(chan struct{})}
	go func() {
		defer close(c.gone)
		_ = cmd.Wait() // it was killed, or the sandbox went away
	}()
	return c, nil
}

// conn is a channel's connection: two pipes to a process in between.
type conn struct {
	in, out *os.File
	cmd     *exec.Cmd
	gone    chan struct{} // closed when the process has been waited for
	once    sync.Once
	err     error
}

// Read implements net.Conn.
func (c *conn) Read(b []byte) (int, error) { return c.in.Read(b) }

// Write implements net.Conn.
func (c *conn) Write(b []byte) (int, error) { return c.out.Write(b) }

// Close implements net.Conn. It returns when the process in between is gone.
func (c *conn) Close() error {
	c.once.Do(func() {
		c.err = errors.Join(c.in.Close(), c.out.Close())
		c.stop()
	})
	return c.err
}

// stop ends the process in between, and returns when it is gone.
func (c *conn) stop() {
	_ = c.cmd.Process.Kill() // it may have ended before
	<-c.gone
}

// LocalAddr implements net.Conn.
func (c *conn) LocalAddr() net.Addr { return &net.UnixAddr{Net: "pipe"} }

// RemoteAddr implements net.Conn.
func (c *conn) RemoteAddr() net.Addr { return &net.UnixAddr{Net: "pipe"} }

// SetDeadline implements net.Conn.
func (c *conn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}

// SetReadDeadline implements net.Conn.
func (c *conn) SetReadDeadline(t time.Time) error { return c.in.SetReadDeadline(t) }

// SetWriteDeadline implements net.Conn.
func (c *conn) SetWriteDeadline(t time.Time) error { return c.out.SetWriteDeadline(t) }

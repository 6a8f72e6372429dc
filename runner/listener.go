package runner

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-broker/sandbox-broker/internal/channel"
)

// listener yields the connections that passed the handshake to the HTTP server.
type listener struct {
	l     *net.UnixListener
	ready chan net.Conn
	done  chan struct{}
	once  sync.Once
}

func newListener(l *net.UnixListener) *listener {
	return &listener{l: l, ready: make(chan net.Conn), done: make(chan struct{})}
}

// acceptAll takes connections until the socket is closed. Each one's handshake
// runs on its own, at most maxHandshakes at once.
func (l *listener) acceptAll(ctx context.Context, id *channel.Identity, log *slog.Logger) error {
	slots := make(chan struct{}, maxHandshakes)
	for {
		ctl, err := l.l.AcceptUnix()
		if err != nil {
			if ctx.Err() != nil || errors.Is(err, net.ErrClosed) {
				return nil
			}
			return fmt.Errorf("runner: accepting: %w", err)
		}
		select {
		case slots <- struct{}{}:
		case <-l.done:
			_ = ctl.Close()
			return nil
		}
		go func() {
			defer func() { <-slots }()
			conn, err := admit(ctl, id)
			if err != nil {
				_ = ctl.Close()
				log.Warn("connection refused", "error", err)
				return
			}
			select {
			case l.ready <- conn:
			case <-l.done:
				_ = conn.Close()
			}
		}()
	}
}

// admit receives the descriptors of one connect and performs the handshake.
func admit(ctl *net.UnixConn, id *channel.Identity) (net.Conn, error) {
	if err := ctl.SetReadDeadline(time.Now().Add(handshakeTimeout)); err != nil {
		return nil, err
	}
	conn, err := receive(ctl)
	if err != nil {
		return nil, err
	}
	if err := conn.SetDeadline(time.Now().Add(handshakeTimeout)); err != nil {
		_ = conn.Close()
		return nil, err
	}
	if err := id.Accept(conn); err != nil {
		_ = conn.Close()
		return nil, err
	}
	return channel.Hold(conn, streamWindow, connWindow), conn.SetDeadline(time.Time{})
}

// receive reads the two descriptors that connect sends with its single byte.
func receive(ctl *net.UnixConn) (*fdConn, error) {
	b, oob := make([]byte, 1), make([]byte, unix.CmsgSpace(2*4))
	_, n, _, _, err := ctl.ReadMsgUnix(b, oob)
	if err != nil {
		return nil, fmt.Errorf("receiving descriptors: %w", err)
	}
	messages, err := unix.ParseSocketControlMessage(oob[:n])
	if err != nil {
		return nil, fmt.Errorf("receiving descriptors: %w", err)
	}
	var fds []int
	for i := range messages {
		got, err := unix.ParseUnixRights(&messages[i])
		if err != nil {
			return nil, fmt.Errorf("receiving descriptors: %w", err)
		}
		fds = append(fds, got...)
	}
	if len(fds) != 2 {
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
		return nil, fmt.Errorf("receiving descriptors: got %d, not 2", len(fds))
	}
	return newFDConn(ctl, fds[0], fds[1])
}

// Accept, Close and Addr make it a net.Listener.
func (l *listener) Accept() (net.Conn, error) {
	select {
	case c := <-l.ready:
		return c, nil
	case <-l.done:
		return nil, net.ErrClosed
	}
}

// Close stops both accepting and yielding.
func (l *listener) Close() error {
	l.once.Do(func() { close(l.done) })
	return l.l.Close()
}

// Addr is the socket's.
func (l *listener) Addr() net.Addr { return l.l.Addr() }

// fdConn is a connection over the two descriptors of a connect process. Closing
// it closes the control socket too, which ends that process.
type fdConn struct {
	ctl  *net.UnixConn
	r, w *os.File
	// in reads ahead: HTTP/2 asks for the head of each frame by itself.
	in *bufio.Reader
}

func newFDConn(ctl *net.UnixConn, rfd, wfd int) (*fdConn, error) {
	// Only a descriptor in non-blocking mode honours deadlines and Close.
	for _, fd := range []int{rfd, wfd} {
		if err := unix.SetNonblock(fd, true); err != nil {
			_ = unix.Close(rfd)
			_ = unix.Close(wfd)
			return nil, fmt.Errorf("preparing a descriptor: %w", err)
		}
	}
	r := os.NewFile(uintptr(rfd), "channel-in")
	return &fdConn{ctl: ctl, r: r, w: os.NewFile(uintptr(wfd), "channel-out"), in: bufio.NewReader(r)}, nil
}

func (c *fdConn) Read(b []byte) (int, error)  { return c.in.Read(b) }
func (c *fdConn) Write(b []byte) (int, error) { return c.w.Write(b) }
func (c *fdConn) Close() error {
	return errors.Join(c.r.Close(), c.w.Close(), c.ctl.Close())
}
func (c *fdConn) LocalAddr() net.Addr  { return c.ctl.LocalAddr() }
func (c *fdConn) RemoteAddr() net.Addr { return c.ctl.LocalAddr() }
func (c *fdConn) SetDeadline(t time.Time) error {
	return errors.Join(c.r.SetReadDeadline(t), c.w.SetWriteDeadline(t))
}
func (c *fdConn) SetReadDeadline(t time.Time) error  { return c.r.SetReadDeadline(t) }
func (c *fdConn) SetWriteDeadline(t time.Time) error { return c.w.SetWriteDeadline(t) }

package channel

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// Bounds on what a runner, which may be hostile, can make the broker hold or
// wait for.
const (
	// streamWindow is the unread data one exec can make the broker hold, in bytes.
	streamWindow = 2 << 20
	// connWindow is the same for a whole sandbox.
	connWindow = 4<<20 - 1
	// maxReadFrame makes large frames possible: fewer system calls in gVisor.
	maxReadFrame = 256 << 10
	// maxResponseHeader bounds a response's header list, in bytes.
	maxResponseHeader = 8 << 10
	// headerTable is the size of each table of header fields for compression, in
	// bytes: too small for any field, since 0 is the default. On a channel that lives
	// for a few requests tables save less traffic than they take memory.
	headerTable = 1
	// maxAnswer bounds the body of a simple answer, in bytes.
	maxAnswer = 64 << 10
	// pingAfter and pingTimeout find a channel that died silently; see pulse.go.
	pingAfter   = 15 * time.Second
	pingTimeout = 10 * time.Second
)

// baseURL is a placeholder host: the connection is given.
const baseURL = "http://runner"

// Client is the broker's end of a channel. It is safe for concurrent use.
type Client struct {
	boot string
	conn net.Conn
	h2   *http.ClientConn

	pulse pulse

	once sync.Once
	done chan struct{}
}

// Open performs the handshake on conn and takes it over: conn is closed when
// Open fails and when the Client is closed. Cancelling ctx aborts Open only.
//
// With expectBoot empty, any runner is accepted that is fresh or holds the key;
// otherwise a *[BootChangedError] says that another one answered.
func Open(ctx context.Context, conn net.Conn, key []byte, expectBoot string) (*Client, error) {
	stop := context.AfterFunc(ctx, func() { _ = conn.Close() })
	c, err := open(ctx, conn, key, expectBoot)
	if !stop() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		_ = conn.Close()
		if ctx.Err() != nil {
			err = fmt.Errorf("channel: opening: %w", errors.Join(ctx.Err(), err))
		}
		return nil, err
	}
	return c, nil
}

// connKey finds the connection that a new channel is to use in its context.
type connKey struct{}

// transport makes the HTTP/2 of all channels: one of its own would add a quarter to
// what each holds. It pools nothing; every connection is its channel's.
var transport = newTransport()

func newTransport() *http.Transport {
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	return &http.Transport{
		DialContext:            func(ctx context.Context, _, _ string) (net.Conn, error) { return ctx.Value(connKey{}).(net.Conn), nil },
		Protocols:              &protocols,
		MaxResponseHeaderBytes: maxResponseHeader,
		DisableCompression:     true,
		HTTP2: &http.HTTP2Config{
			MaxReadFrameSize:              maxReadFrame,
			MaxReceiveBufferPerStream:     streamWindow,
			MaxReceiveBufferPerConnection: connWindow,
			MaxEncoderHeaderTableSize:     headerTable,
			MaxDecoderHeaderTableSize:     headerTable,
		},
	}
}

func open(ctx context.Context, conn net.Conn, key []byte, expectBoot string) (*Client, error) {
	boot, err := greet(conn, key, expectBoot)
	if err != nil {
		return nil, err
	}
	c := &Client{boot: boot, done: make(chan struct{})}
	c.pulse = pulse{after: pingAfter, patience: pingTimeout, ask: c.alive, dead: c.Close}
	held := holdClient(conn, streamWindow, connWindow)
	c.conn = &watchedConn{Conn: held, heard: c.pulse.hear, closed: c.markDone}
	c.h2, err = transport.NewClientConn(context.WithValue(ctx, connKey{}, c.conn), "http", "runner:80")
	if err != nil {
		return nil, fmt.Errorf("channel: starting HTTP/2: %w", err)
	}
	c.pulse.start()
	return c, nil
}

// Boot is the runner's boot ID.
func (c *Client) Boot() string { return c.boot }

// Done is closed when the channel is no longer usable.
func (c *Client) Done() <-chan struct{} { return c.done }

// Close ends the channel; execs in the sandbox go on.
func (c *Client) Close() {
	_ = c.h2.Close()
	_ = c.conn.Close()
	c.markDone()
}

func (c *Client) markDone() {
	c.once.Do(func() {
		close(c.done)
		c.pulse.stop()
	})
}

// Bind gives the sandbox to a lease; see [Bind]. A sandbox that belongs to
// another lease answers an error that IsBoundElsewhere knows.
func (c *Client) Bind(ctx context.Context, b Bind) error {
	return c.call(ctx, PathBind, b, nil)
}

// Prepare makes the runner get ready for programs, and waits until it is, at most
// PrepareWait; see [Prepare].
func (c *Client) Prepare(ctx context.Context, p Prepare) (Prepared, error) {
	var done Prepared
	err := c.call(ctx, PathPrepare, p, &done)
	return done, err
}

// Status asks the runner how it is.
func (c *Client) Status(ctx context.Context) (Status, error) {
	var s Status
	err := c.call(ctx, PathStatus, nil, &s)
	return s, err
}

func (c *Client) call(ctx context.Context, route string, in, out any) error {
	method, path, _ := strings.Cut(route, " ")
	var body io.Reader
	if in != nil {
		body = bytes.NewReader(wire.Marshal(in))
	}
	req, err := http.NewRequestWithContext(ctx, method, baseURL+path, body)
	if err != nil {
		return fmt.Errorf("channel: %s: %w", path, err)
	}
	res, err := c.h2.RoundTrip(req)
	if err != nil {
		return fmt.Errorf("channel: %s: %w", path, err)
	}
	defer func() { _ = res.Body.Close() }()
	b, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err != nil {
		return fmt.Errorf("channel: %s: reading the answer: %w", path, err)
	}
	if res.StatusCode != http.StatusOK {
		return answerError(path, res.StatusCode, b)
	}
	if out == nil {
		return nil
	}
	if err := json.Unmarshal(b, out); err != nil {
		return fmt.Errorf("channel: %s: the answer is not the JSON it must be: %w", path, err)
	}
	return nil
}

func answerError(path string, status int, body []byte) error {
	var e wire.Error
	if err := json.Unmarshal(body, &e); err != nil || e.Code == "" {
		return fmt.Errorf("channel: %s: the runner answered status %d", path, status)
	}
	return &e
}

// ExecStream is the broker's end of one exec's full-duplex request. Send is safe
// for concurrent use; Recv belongs to one goroutine.
type ExecStream struct {
	in     *FrameWriter
	pipe   *io.PipeWriter
	out    *FrameReader
	body   io.ReadCloser
	cancel context.CancelFunc
	unhook func() bool // ctx no longer closes the stream
}

// Exec starts the exec, or attaches to it. It returns once the runner has
// answered; what came of it is in the first frames. The stream lives until
// Close, or until ctx ends; closing it ends no exec.
func (c *Client) Exec(ctx context.Context, id string, start Start, code []byte) (*ExecStream, error) {
	first := wire.Marshal(start)
	return c.stream(ctx, "/v1/exec/"+id, wire.Frame{Kind: wire.KindRequest, Offset: uint64(len(first)), Payload: append(first, code...)})
}

// Echo opens a stream whose frames come back, to measure the channel with: what one
// that is held costs, and no work besides. The first frame is on its way.
func (c *Client) Echo(ctx context.Context, first wire.Frame) (*ExecStream, error) {
	_, path, _ := strings.Cut(PathEcho, " ")
	return c.stream(ctx, path, first)
}

// stream makes a full-duplex request with a first frame.
func (c *Client) stream(ctx context.Context, path string, first wire.Frame) (*ExecStream, error) {
	ctx, cancel := context.WithCancel(ctx)
	pr, pw := io.Pipe()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, baseURL+path, pr)
	if err != nil {
		cancel()
		return nil, fmt.Errorf("channel: %s: %w", path, err)
	}
	s := &ExecStream{in: NewFrameWriter(pw, nil), pipe: pw, cancel: cancel}
	go func() {
		if err := s.in.Write(first); err != nil {
			_ = pw.CloseWithError(err)
		}
	}()
	res, err := c.h2.RoundTrip(req)
	if err != nil {
		s.Close()
		return nil, fmt.Errorf("channel: %s: %w", path, err)
	}
	s.body = res.Body
	if res.StatusCode != http.StatusOK {
		b, _ := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
		s.Close()
		return nil, answerError(path, res.StatusCode, b)
	}
	s.out = NewFrameReader(res.Body, wire.MaxControl)
	// While a request's body goes on, HTTP/2 does not look at its context any
	// more: closing both bodies is what ends it.
	s.unhook = context.AfterFunc(ctx, func() {
		_ = pw.CloseWithError(context.Cause(ctx))
		_ = res.Body.Close()
	})
	return s, nil
}

// Send passes a frame of the client to the runner.
func (s *ExecStream) Send(f wire.Frame) error { return s.in.Write(f) }

// Recv returns the runner's next frame; its payload is valid until the next
// call. io.EOF follows a terminal frame; any other error is a broken channel.
func (s *ExecStream) Recv() (wire.Frame, error) { return s.out.Read() }

// Close detaches from the exec.
func (s *ExecStream) Close() {
	if s.unhook != nil {
		s.unhook()
	}
	_ = s.pipe.Close()
	s.cancel()
	if s.body != nil {
		_ = s.body.Close()
	}
}

package sandboxclient

import (
	"context"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"sync"
	"time"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/trace"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// Bounds of a client.
const (
	// maxConnections bounds how many connections take new streams. A second one is
	// opened when the broker allows no more streams on the first; at the bound,
	// callers wait for a stream to end.
	maxConnections = 16
	// openAttempts bounds how often a request that never left this process is
	// tried again on another connection.
	openAttempts = 3
	// closeWait bounds how long Close waits for leases that are being given back.
	closeWait = 2 * time.Second
)

// Client talks to one broker. Its methods may be called from many goroutines at
// once. It connects when the first call needs it, and keeps the connection.
type Client struct {
	endpoint   *url.URL
	opts       options
	tracer     trace.Tracer
	cancelWait time.Duration // cancelWait, but for tests of what happens after it
	closing    chan struct{} // closed when Close is called

	// resumeWindow and startDoubt, but for tests of their end.
	resumeWindow, startDoubt time.Duration

	mu         sync.Mutex // guards what follows; no I/O happens under it
	state      clientState
	conns      []*conn            // those that take new streams, oldest first
	all        map[*conn]struct{} // these and the ones that only finish their streams
	dialing    *dialing           // the dial in progress, or nil
	background int                // how many background tasks run
	changed    chan struct{}      // closed, and replaced, when a waiter should look again
}

// clientState is how far a client is from its end.
type clientState int

const (
	clientOpen    clientState = iota
	clientClosing             // no new calls; leases are still given back
	clientClosed              // nothing is sent any more
)

// dialing is one dial that any number of callers wait for.
type dialing struct {
	cancel context.CancelFunc
	done   chan struct{} // closed when the dial has ended and err is set
	err    error
}

// New makes a client for the broker at baseURL, such as https://broker:8443. It
// checks its arguments and does not connect yet.
func New(baseURL string, opts ...Option) (*Client, error) {
	c := &Client{
		cancelWait: cancelWait, resumeWindow: resumeWindow, startDoubt: startDoubt,
		all:     make(map[*conn]struct{}),
		changed: make(chan struct{}),
		closing: make(chan struct{}),
	}
	for _, opt := range opts {
		if err := opt(&c.opts); err != nil {
			return nil, fmt.Errorf("sandboxclient: %w", err)
		}
	}
	var err error
	if c.endpoint, err = endpointURL(baseURL); err != nil {
		return nil, fmt.Errorf("sandboxclient: %w", err)
	}
	if err := c.opts.checkTokenSafety(c.endpoint); err != nil {
		return nil, fmt.Errorf("sandboxclient: %w", err)
	}
	provider := c.opts.tracers
	if provider == nil {
		provider = otel.GetTracerProvider()
	}
	c.tracer = provider.Tracer(tracerName)
	return c, nil
}

// Close ends the client's connections. Programs that run on them go on without
// it, as after a lost connection, and their calls return a [*DisconnectedError].
// It waits a short time, at most 2 s, for leases that are being given back. Later
// calls return [ErrClosed]. Closing twice is no error.
func (c *Client) Close() error {
	c.mu.Lock()
	if c.state == clientOpen {
		c.state = clientClosing
		close(c.closing)
	}
	c.mu.Unlock()
	c.awaitBackground(closeWait)

	c.mu.Lock()
	c.state = clientClosed
	d := c.dialing
	conns := make([]*conn, 0, len(c.all))
	for cn := range c.all {
		conns = append(conns, cn)
	}
	c.notifyLocked()
	c.mu.Unlock()

	if d != nil {
		d.cancel()
		<-d.done
	}
	for _, cn := range conns {
		cn.close(ErrClosed)
	}
	for _, cn := range conns {
		cn.goroutines.Wait()
	}
	// What still ran in the background lost its connection just now.
	c.awaitBackground(closeWait)
	return nil
}

// awaitBackground waits until no background task is left, at most for bound.
func (c *Client) awaitBackground(bound time.Duration) {
	timer := time.NewTimer(bound)
	defer timer.Stop()
	for {
		c.mu.Lock()
		n, changed := c.background, c.changed
		c.mu.Unlock()
		if n == 0 {
			return
		}
		select {
		case <-changed:
		case <-timer.C:
			return
		}
	}
}

// goBackground runs a task that no caller waits for. Each task bounds itself; it
// is dropped when the client is closed.
func (c *Client) goBackground(task func()) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state == clientClosed {
		return
	}
	c.background++
	go func() {
		defer func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.background--
			c.notifyLocked()
		}()
		task()
	}()
}

// usable is the check at the start of every public call.
func (c *Client) usable(ctx context.Context) error {
	if err := ctx.Err(); err != nil {
		return fmt.Errorf("sandboxclient: %w", err)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.state != clientOpen {
		return ErrClosed
	}
	return nil
}

// open sends a request on a connection with room for it. On success the stream
// belongs to the caller, who must call its finish.
func (c *Client) open(ctx context.Context, s *stream, req wire.Request, code []byte) error {
	frame, err := requestFrame(req, code)
	if err != nil {
		return err
	}
	for range openAttempts {
		var cn *conn
		if cn, err = c.reserve(ctx); err != nil {
			return err
		}
		if err = cn.start(ctx, s, frame); !errors.Is(err, errNotSent) {
			return err
		}
	}
	return err
}

// BrokerVersion asks the broker for its version, a line for people. A broker
// whose sandboxes isolate nothing says so in it.
func (c *Client) BrokerVersion(ctx context.Context) (string, error) {
	if err := c.usable(ctx); err != nil {
		return "", err
	}
	cn, err := c.reserve(ctx)
	if err != nil {
		return "", err
	}
	defer cn.release()
	return cn.hello.Version, nil
}

// requestFrame encodes a request, and refuses what no broker would take.
func requestFrame(req wire.Request, code []byte) (wire.Frame, error) {
	if len(code) > wire.MaxCode {
		return wire.Frame{}, wire.Invalid("code", wire.MaxCode, "code of %d bytes exceeds the protocol's limit of %d", len(code), wire.MaxCode)
	}
	f := wire.RequestFrame(0, req, code)
	if f.Offset > wire.MaxControl {
		return wire.Frame{}, wire.Invalid("request", wire.MaxControl,
			"arguments, environment and the rest of the request take %d bytes, more than the protocol's limit of %d", f.Offset, wire.MaxControl)
	}
	return f, nil
}

// reserve finds a connection with room for a stream, dials when there is none,
// and waits when there are enough.
func (c *Client) reserve(ctx context.Context) (*conn, error) {
	for {
		c.mu.Lock()
		if c.state == clientClosed {
			c.mu.Unlock()
			return nil, ErrClosed
		}
		for _, cn := range c.conns {
			if cn.reserve() {
				c.mu.Unlock()
				return cn, nil
			}
		}
		if c.dialing == nil && len(c.conns) < maxConnections {
			c.startDialLocked()
		}
		d, changed := c.dialing, c.changed
		c.mu.Unlock()

		var dialed <-chan struct{} // nil, and never ready, without a dial
		if d != nil {
			dialed = d.done
		}
		select {
		case <-ctx.Done():
			return nil, fmt.Errorf("sandboxclient: waiting for a connection: %w", ctx.Err())
		case <-dialed:
			if d.err != nil {
				return nil, d.err
			}
		case <-changed:
		}
	}
}

// startDialLocked dials in a goroutine of its own: the caller who needed the
// connection first may give up without taking it from the others.
func (c *Client) startDialLocked() {
	ctx, cancel := context.WithTimeout(context.Background(), dialTimeout)
	d := &dialing{cancel: cancel, done: make(chan struct{})}
	c.dialing = d
	go func() {
		defer close(d.done)
		defer cancel()
		cn, err := c.dial(ctx)
		c.mu.Lock()
		defer c.mu.Unlock()
		c.dialing = nil
		d.err = err
		if err == nil {
			// A client closed in the meantime has canceled ctx; see Close.
			if c.state == clientClosed {
				d.err = ErrClosed
				cn.fail(ErrClosed)
				return
			}
			c.conns = append(c.conns, cn)
			c.all[cn] = struct{}{}
			cn.run()
		}
	}()
}

// notifyLocked wakes everyone who waits for something to change.
func (c *Client) notifyLocked() {
	close(c.changed)
	c.changed = make(chan struct{})
}

// slotFreed is called by a connection when one of its streams has ended.
func (c *Client) slotFreed(cn *conn) {
	c.mu.Lock()
	surplus := len(c.conns) > 1 && slices.Contains(c.conns, cn) && cn.retireIfIdle()
	if surplus {
		c.dropLocked(cn)
	}
	c.notifyLocked()
	c.mu.Unlock()
	if surplus {
		cn.close(errIdle)
	}
}

// retired is called by a connection that takes no new streams.
func (c *Client) retired(cn *conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dropLocked(cn)
	c.notifyLocked()
}

// gone is called by a connection as the last thing its reader does.
func (c *Client) gone(cn *conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.dropLocked(cn)
	delete(c.all, cn)
	c.notifyLocked()
}

func (c *Client) dropLocked(cn *conn) {
	c.conns = slices.DeleteFunc(c.conns, func(other *conn) bool { return other == cn })
}

package channel

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// pathAlive is asked of a runner that was not heard for a while. There is no such
// route: any answer at all proves that its HTTP/2 is alive.
const pathAlive = "/v1/alive"

// pulse finds a channel that died silently: when nothing came for some time it asks
// for an answer, and ends the channel if none comes.
//
// net/http's HTTP/2 could do it by itself, with pings. But it does not stop the
// timer for them when a connection is closed, and that holds all the connection's
// memory until it fires: with pings after 15 s, at 2,000 runs a second, each with a
// channel of its own, that would be 500 MB. (It still holds a connection that was
// used lately for 5 s, in case a pool wants to know why it failed.)
type pulse struct {
	after, patience time.Duration // silence before asking; how long to wait then
	ask             func(context.Context) error
	dead            func()

	heard atomic.Int64 // when something came last, as nanoseconds after epoch

	mu      sync.Mutex // guards the rest
	timer   *time.Timer
	stopped bool
}

// epoch is what times of pulses are counted from: they are monotonic so.
var epoch = time.Now()

// hear notes that something came.
func (p *pulse) hear() { p.heard.Store(int64(time.Since(epoch))) }

// start begins to listen.
func (p *pulse) start() {
	p.hear()
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.stopped {
		p.timer = time.AfterFunc(p.after, p.check)
	}
}

// stop ends it for ever.
func (p *pulse) stop() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.stopped = true
	if p.timer != nil {
		p.timer.Stop()
	}
}

// again sets when to look next.
func (p *pulse) again(in time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.stopped {
		p.timer.Reset(in)
	}
}

// check asks if it has been silent for long enough.
func (p *pulse) check() {
	silent := time.Since(epoch) - time.Duration(p.heard.Load())
	if silent < p.after {
		p.again(p.after - silent)
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), p.patience)
	defer cancel()
	if err := p.ask(ctx); err != nil {
		p.dead()
		return
	}
	p.again(p.after)
}

// alive asks the runner for any answer. It needs one of the channel's streams, of
// which a runner grants more than it has execs.
func (c *Client) alive(ctx context.Context) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodHead, baseURL+pathAlive, nil)
	if err != nil {
		return fmt.Errorf("channel: asking for a sign of life: %w", err)
	}
	res, err := c.h2.RoundTrip(req)
	if err != nil {
		return fmt.Errorf("channel: asking for a sign of life: %w", err)
	}
	_, _ = io.CopyN(io.Discard, res.Body, maxAnswer) // what it says does not matter
	return res.Body.Close()
}

// watchedConn tells when something has come over the connection under HTTP/2, and
// when it has been closed, by whom ever.
type watchedConn struct {
	net.Conn
	heard  func()
	closed func()
}

// Read reads and tells.
func (c *watchedConn) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	if n > 0 {
		c.heard()
	}
	return n, err
}

// Close closes the connection and tells.
func (c *watchedConn) Close() error {
	c.closed()
	return c.Conn.Close()
}

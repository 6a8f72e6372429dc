package simulated

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/sandbox-broker/sandbox-broker/internal/channel"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

const (
	// openTimeout bounds a new connection's handshake, and how long it waits for the
	// sandbox it names to start.
	openTimeout = 10 * time.Second
	// maxStreams bounds the requests at once on one channel, as the real runner does.
	maxStreams = 128
)

// runners are all sandboxes of one provider, in their own process.
type runners struct {
	ready chan net.Conn // connections that passed the handshake
	done  chan struct{} // closed at the end

	mu      sync.Mutex // guards the rest
	last    uint64     // the highest number that has started
	live    map[uint64]*runner
	waiting map[uint64][]chan struct{} // closed when the sandbox of that number starts
}

// serve answers on l for the sandboxes that orders start, until orders end.
func serve(l net.Listener, orders io.Reader) error {
	r := &runners{ready: make(chan net.Conn), done: make(chan struct{}), live: map[uint64]*runner{}, waiting: map[uint64][]chan struct{}{}}
	srv := r.server()
	defer func() { _ = srv.Close() }() // waits for Serve, which done ends
	defer close(r.done)
	failed := make(chan error, 3)
	go func() { failed <- r.follow(orders) }()
	go func() { failed <- r.accept(l) }()
	go func() { failed <- srv.Serve(&yield{Listener: l, r: r}) }()
	return <-failed
}

// server is the HTTP/2 server on all connections. Its limits are the real
// runner's.
func (r *runners) server() *http.Server {
	var protocols http.Protocols
	protocols.SetUnencryptedHTTP2(true)
	return &http.Server{
		Handler: handler(), Protocols: &protocols, ReadHeaderTimeout: openTimeout, MaxHeaderBytes: 8 << 10,
		ConnContext: func(ctx context.Context, c net.Conn) context.Context {
			return context.WithValue(ctx, runnerKey{}, c.(*runnerConn).runner)
		},
		HTTP2: &http.HTTP2Config{
			MaxConcurrentStreams: maxStreams, MaxReadFrameSize: wire.MaxData,
			MaxReceiveBufferPerStream: 256 << 10, MaxReceiveBufferPerConnection: 1 << 20,
		},
	}
}

// follow carries the orders out. Their end is the parent's.
func (r *runners) follow(orders io.Reader) error {
	in := bufio.NewReader(orders)
	for {
		o, err := readOrder(in)
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return fmt.Errorf("reading orders: %w", err)
		}
		switch o.kind {
		case orderStart:
			r.start(o.sandbox)
		case orderEnd:
			r.end(o.sandbox)
		default:
			return fmt.Errorf("there is no order %q", o.kind)
		}
	}
}

func (r *runners) start(n uint64) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.last = n
	r.live[n] = newRunner()
	for _, w := range r.waiting[n] {
		close(w)
	}
	delete(r.waiting, n)
}

func (r *runners) end(n uint64) {
	r.mu.Lock()
	sb := r.live[n]
	delete(r.live, n)
	r.mu.Unlock()
	if sb != nil {
		sb.close()
	}
}

// find returns the runner of a sandbox, and waits for one that is still to start;
// nil if it has ended or does not start in time.
func (r *runners) find(n uint64) *runner {
	r.mu.Lock()
	sb := r.live[n]
	if sb != nil || n <= r.last {
		r.mu.Unlock()
		return sb
	}
	started := make(chan struct{})
	r.waiting[n] = append(r.waiting[n], started)
	r.mu.Unlock()
	t := time.NewTimer(openTimeout)
	defer t.Stop()
	select {
	case <-started:
	case <-t.C:
		return nil
	case <-r.done:
		return nil
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.live[n]
}

// accept takes connections until l is closed. Each one's handshake runs on its
// own.
func (r *runners) accept(l net.Listener) error {
	for {
		conn, err := l.Accept()
		if err != nil {
			return fmt.Errorf("accepting: %w", err)
		}
		go func() {
			c, err := r.admit(conn)
			if err != nil {
				_ = conn.Close() // the provider sees that, and knows why
				return
			}
			select {
			case r.ready <- c:
			case <-r.done:
				_ = c.Close()
			}
		}()
	}
}

// admit finds out for whom a connection is, and performs the handshake.
func (r *runners) admit(conn net.Conn) (*runnerConn, error) {
	if err := conn.SetDeadline(time.Now().Add(openTimeout)); err != nil {
		return nil, err
	}
	o, err := readOrder(conn)
	if err != nil {
		return nil, err
	}
	sb := r.find(o.sandbox)
	if o.kind != orderOpen || sb == nil {
		return nil, errGone
	}
	if err := sb.identity.Accept(conn); err != nil {
		return nil, err
	}
	c := &runnerConn{Conn: conn, runner: sb}
	if !sb.add(c) {
		return nil, errGone
	}
	return c, conn.SetDeadline(time.Time{})
}

// yield is the listener of the HTTP server: it gives the connections that passed
// the handshake.
type yield struct {
	net.Listener
	r *runners
}

// Accept implements net.Listener.
func (y *yield) Accept() (net.Conn, error) {
	select {
	case c := <-y.r.ready:
		return c, nil
	case <-y.r.done:
		return nil, net.ErrClosed
	}
}

// runnerKey finds the runner of a connection in a request's context.
type runnerKey struct{}

// runner answers for one sandbox.
type runner struct {
	identity *channel.Identity

	mu    sync.Mutex // guards the rest
	gone  bool
	conns map[*runnerConn]struct{}
	bound *channel.Bind
	execs map[string]*execution
}

func newRunner() *runner {
	return &runner{identity: channel.NewIdentity(), conns: map[*runnerConn]struct{}{}, execs: map[string]*execution{}}
}

func (sb *runner) add(c *runnerConn) bool {
	sb.mu.Lock()
	defer sb.mu.Unlock()
	if sb.gone {
		return false
	}
	sb.conns[c] = struct{}{}
	return true
}

// close cuts all connections.
func (sb *runner) close() {
	sb.mu.Lock()
	sb.gone = true
	conns := sb.conns
	sb.conns = nil
	sb.mu.Unlock()
	for c := range conns {
		_ = c.Conn.Close()
	}
}

// runnerConn is one connection to a sandbox.
type runnerConn struct {
	net.Conn
	runner *runner
}

// Close closes the connection and takes it off the runner's list.
func (c *runnerConn) Close() error {
	c.runner.mu.Lock()
	delete(c.runner.conns, c)
	c.runner.mu.Unlock()
	return c.Conn.Close()
}

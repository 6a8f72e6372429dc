// Package server is the broker's edge: HTTP and WebSocket, authentication, and
// the one table from errors to statuses (package wire has it, for both ends).
//
// All work goes over the WebSocket at wire.Path; a session (session.go) reads
// frames and gives each stream to the broker. Every route is in one table, so
// that a test can hold each against missing and foreign credentials.
package server

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gorilla/websocket"
	"golang.org/x/sync/semaphore"

	"github.com/sandbox-broker/sandbox-broker/broker"
	"github.com/sandbox-broker/sandbox-broker/internal/auth"
	"github.com/sandbox-broker/sandbox-broker/internal/version"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

const (
	// DefaultHeartbeat is how often both ends ping.
	DefaultHeartbeat = 10 * time.Second
	// DefaultWriteTimeout bounds one write to a client.
	DefaultWriteTimeout = 10 * time.Second
	// maxSessions bounds the connections of one broker.
	maxSessions = 8192
	// MaxStreams is how many streams a connection may have open at a time.
	MaxStreams = 256
	// streamLimit is where they are refused: a stream is open here a little longer
	// than its client thinks, who has read its last frame.
	streamLimit = 2 * MaxStreams
	// handshakeTimeout bounds the WebSocket upgrade.
	handshakeTimeout = 10 * time.Second
)

// Broker is what the edge needs of the domain.
type Broker interface {
	Do(ctx context.Context, c broker.Caller, req wire.Request, code []byte, s broker.Stream) error
	Pools(tenant string) []wire.Pool
}

// Options configure a Server.
type Options struct {
	Broker Broker
	// Auth knows the callers; nil takes everyone for the tenant "local" and must
	// only be used on loopback.
	Auth auth.Authenticator
	// Isolation is said beside the version, if all sandboxes have the same.
	Isolation string
	Log       *slog.Logger  // nil: discarded
	Heartbeat time.Duration // zero: DefaultHeartbeat
	// WriteTimeout bounds one write to a client, of a frame at most; a client that takes
	// longer is gone. Zero: DefaultWriteTimeout.
	WriteTimeout time.Duration
	// LargeTimeout bounds the reading of one large message; zero:
	// DefaultLargeTimeout.
	LargeTimeout time.Duration
}

// Server is the public HTTP handler. Close ends its sessions.
type Server struct {
	opts     Options
	mux      *http.ServeMux
	upgrader websocket.Upgrader

	large *semaphore.Weighted // bytes of large messages being read

	wg sync.WaitGroup // sessions

	mu       sync.Mutex // guards the rest
	closed   bool
	sessions map[*session]struct{}
}

// localTenant is everyone when there is no authentication.
const localTenant = "local"

// New makes the handler.
func New(o Options) *Server {
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Heartbeat == 0 {
		o.Heartbeat = DefaultHeartbeat
	}
	if o.WriteTimeout == 0 {
		o.WriteTimeout = DefaultWriteTimeout
	}
	if o.LargeTimeout == 0 {
		o.LargeTimeout = DefaultLargeTimeout
	}
	s := &Server{opts: o, mux: http.NewServeMux(), large: semaphore.NewWeighted(largeBudget), sessions: map[*session]struct{}{}}
	s.upgrader = websocket.Upgrader{
		HandshakeTimeout: handshakeTimeout,
		Subprotocols:     []string{wire.Subprotocol},
		ReadBufferSize:   32 << 10,
		WriteBufferSize:  wire.MaxData + 4<<10, // one frame, one write
		WriteBufferPool:  &sync.Pool{},
		Error: func(w http.ResponseWriter, _ *http.Request, _ int, reason error) {
			fail(w, wire.Invalid("connection", 0, "%v", reason))
		},
	}
	for _, r := range s.routes() {
		s.mux.Handle(r.pattern, s.authenticated(r.serve))
	}
	s.mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		fail(w, wire.Errorf(wire.CodeNotFound, "there is nothing at %s %s; the API is the WebSocket at %s", r.Method, r.URL.Path, wire.Path))
	})
	return s
}

// route is one entry of the edge. All of them are authenticated.
type route struct {
	pattern string
	serve   func(http.ResponseWriter, *http.Request, auth.Identity)
}

func (s *Server) routes() []route {
	return []route{
		{"GET " + wire.Path, s.serveConnect},
		{"GET " + wire.PoolsPath, s.servePools},
	}
}

// ServeHTTP implements http.Handler.
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.mux.ServeHTTP(w, r) }

// authenticated finds out who calls before anything else is looked at.
func (s *Server) authenticated(next func(http.ResponseWriter, *http.Request, auth.Identity)) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		id, err := s.identify(r)
		if err != nil {
			e := wire.AsError(err)
			if e.Code == wire.CodeUnauthenticated {
				w.Header().Set("WWW-Authenticate", `Bearer realm="sandbox-broker"`)
			}
			fail(w, e)
			return
		}
		next(w, r, id)
	})
}

// identify returns the caller, or a *wire.Error.
func (s *Server) identify(r *http.Request) (auth.Identity, error) {
	if s.opts.Auth == nil {
		if err := fromThisMachine(r); err != nil {
			return auth.Identity{}, err
		}
		return auth.Identity{Tenant: localTenant, Subject: localTenant}, nil
	}
	token, ok := auth.Bearer(r)
	if !ok {
		return auth.Identity{}, wire.Errorf(wire.CodeUnauthenticated, "the request has no bearer token")
	}
	id, err := s.opts.Auth.Authenticate(r.Context(), token)
	switch {
	case errors.Is(err, auth.ErrUnknown):
		return id, wire.Errorf(wire.CodeUnauthenticated, "the bearer token is not valid here")
	case err != nil:
		s.opts.Log.Error("authentication is not possible", "error", err)
		return id, wire.Errorf(wire.CodeUnavailable, "the caller cannot be authenticated now")
	}
	return id, nil
}

// fromThisMachine refuses what a web page makes a browser send. Without
// credentials to ask for, the name by which the broker was called and the
// absence of an origin are what tells programs on this machine from pages that a
// name server points here.
func fromThisMachine(r *http.Request) error {
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	ip := net.ParseIP(strings.Trim(host, "[]"))
	if host != "localhost" && (ip == nil || !ip.IsLoopback()) {
		return wire.Invalid("Host", 0, "a broker without authentication answers to localhost and loopback addresses only, not to %q", host)
	}
	if r.Header.Get("Origin") != "" {
		return wire.Errorf(wire.CodeForbidden, "a broker without authentication does not serve web pages")
	}
	return nil
}

func (s *Server) servePools(w http.ResponseWriter, _ *http.Request, id auth.Identity) {
	reply(w, http.StatusOK, s.opts.Broker.Pools(id.Tenant))
}

func (s *Server) serveConnect(w http.ResponseWriter, r *http.Request, id auth.Identity) {
	if websocket.IsWebSocketUpgrade(r) && !offers(r, wire.Subprotocol) {
		fail(w, wire.Invalid("Sec-WebSocket-Protocol", 0, "the client offers no %s", wire.Subprotocol))
		return
	}
	sess := newSession(s, id)
	if err := s.admit(sess); err != nil {
		fail(w, err)
		return
	}
	defer s.dismiss(sess)
	conn, err := s.upgrader.Upgrade(w, r, nil)
	if err != nil {
		return // the upgrader has answered
	}
	sess.serve(conn)
}

func offers(r *http.Request, name string) bool {
	for _, p := range websocket.Subprotocols(r) {
		if p == name {
			return true
		}
	}
	return false
}

// admit counts a session; it refuses when closing or full.
func (s *Server) admit(sess *session) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch {
	case s.closed:
		return wire.Errorf(wire.CodeUnavailable, "the broker is shutting down; connect again")
	case len(s.sessions) >= maxSessions:
		return &wire.Error{Code: wire.CodeExhausted, Limit: maxSessions, Message: "the broker holds as many connections as it may", RetryAfterMS: 1000}
	}
	s.sessions[sess] = struct{}{}
	s.wg.Add(1)
	return nil
}

func (s *Server) dismiss(sess *session) {
	s.mu.Lock()
	delete(s.sessions, sess)
	s.mu.Unlock()
	s.wg.Done()
}

// Close refuses new connections, asks every client to connect again (elsewhere)
// and detaches what they run. It waits until all sessions are gone or ctx ends:
// http.Server.Shutdown knows nothing of them.
func (s *Server) Close(ctx context.Context) error {
	s.mu.Lock()
	s.closed = true
	open := make([]*session, 0, len(s.sessions))
	for sess := range s.sessions {
		open = append(open, sess)
	}
	s.mu.Unlock()
	for _, sess := range open {
		sess.goAway("the broker is shutting down")
	}
	done := make(chan struct{})
	go func() {
		s.wg.Wait()
		close(done)
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

func fail(w http.ResponseWriter, err error) {
	e := wire.AsError(err)
	if e == nil {
		e = wire.Errorf(wire.CodeInternal, "an unexpected failure; the broker's log has the reason")
	}
	if d := e.RetryAfter(); d > 0 {
		w.Header().Set("Retry-After", strconv.FormatInt(int64((d+time.Second-1)/time.Second), 10)) // RFC 9110, 10.2.3: whole seconds
	}
	reply(w, e.Code.Status(), e)
}

func reply(w http.ResponseWriter, status int, v any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_, _ = w.Write(wire.Marshal(v)) //nolint:gosec // it is JSON and says so; a client that is gone is no concern here
}

func requestID() string {
	var b [8]byte
	_, _ = rand.Read(b[:]) // crypto/rand never fails
	return hex.EncodeToString(b[:])
}

func (s *Server) hello() wire.Frame {
	v := version.String()
	if s.opts.Isolation != "" {
		v += ", isolation: " + s.opts.Isolation
	}
	return wire.JSONFrame(wire.KindHello, 0, wire.Hello{Version: v, HeartbeatMS: s.opts.Heartbeat.Milliseconds(), MaxStreams: MaxStreams})
}

// Patterns lists every authenticated route, "METHOD /path".
func (s *Server) Patterns() []string {
	var out []string
	for _, r := range s.routes() {
		out = append(out, r.pattern)
	}
	return out
}

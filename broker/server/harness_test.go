package server_test

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/sandbox-broker/sandbox-broker/broker"
	"github.com/sandbox-broker/sandbox-broker/broker/server"
	"github.com/sandbox-broker/sandbox-broker/internal/auth"
	"github.com/sandbox-broker/sandbox-broker/internal/hostile"
	"github.com/sandbox-broker/sandbox-broker/internal/processtest"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

func TestMain(m *testing.M) {
	processtest.Main()
	goleak.VerifyTestMain(m)
}

// Tokens of the two tenants that tests act as.
const (
	tokenA = "token-of-tenant-a"
	tokenB = "token-of-tenant-b"
)

// site is a broker with its edge and sandboxes on this machine.
type site struct {
	t        *testing.T
	provider *processtest.Provider
	replica  *processtest.Replica // the provider as the broker has it; nil: it has it alone
	beat     time.Duration        // between heartbeats; 0: as the server has it
	startLog time.Duration        // until the log says that a program runs; 0: as the broker has it
	liars    *hostile.Provider    // the sandboxes of the pool "hostile"; nil: there are none
	broker   *broker.Broker
	edge     *server.Server
	http     *httptest.Server
	metrics  *prometheus.Registry
	log      *syncBuffer
}

// pool is the configuration most tests want; they change what they are about.
func pool() broker.PoolConfig {
	return broker.PoolConfig{
		Name: "test", MaxSandboxes: 4, DetachGrace: 300 * time.Millisecond, Linger: 300 * time.Millisecond,
		QueueTimeout: time.Minute, CodeLimit: 4096, MaxTimeout: 20 * time.Second,
	}
}

func newSite(t *testing.T, pools ...broker.PoolConfig) *site {
	t.Helper()
	s := &site{t: t, provider: processtest.New(t), metrics: prometheus.NewRegistry(), log: &syncBuffer{}}
	s.serve(pools...)
	return s
}

// serve starts a broker and its edge on the site's provider.
func (s *site) serve(pools ...broker.PoolConfig) {
	s.t.Helper()
	if len(pools) == 0 {
		pools = []broker.PoolConfig{pool()}
	}
	log := slog.New(slog.NewJSONHandler(s.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	var p broker.Provider = s.provider
	if s.replica != nil {
		p = s.replica
	}
	if s.liars != nil {
		p = divided{Provider: p, liars: s.liars}
	}
	b, err := broker.New(context.Background(), broker.Options{
		Pools: pools, Provider: p, Secret: []byte(strings.Repeat("s", broker.MinSecret)), Metrics: s.metrics, Log: log, StartLogDelay: s.startLog,
	})
	require.NoError(s.t, err)
	tokens, err := auth.NewStatic([]auth.StaticToken{{Token: tokenA, Tenant: "a"}, {Token: tokenB, Tenant: "b"}})
	require.NoError(s.t, err)
	s.broker = b
	s.edge = server.New(server.Options{Broker: b, Auth: tokens, Log: log, Heartbeat: s.beat, WriteTimeout: max(s.beat, server.DefaultWriteTimeout), LargeTimeout: time.Second})
	s.http = httptest.NewServer(s.edge)
	s.t.Cleanup(s.close)
	s.t.Cleanup(func() {
		if s.t.Failed() {
			s.t.Logf("the broker's log:\n%s", s.log)
		}
	})
}

// close hands over, as the serve command does at its end.
func (s *site) close() {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	require.NoError(s.t, s.edge.Close(ctx))
	s.http.Close()
	require.NoError(s.t, s.broker.Close(ctx))
}

func (s *site) client(token string) *sandboxclient.Client {
	s.t.Helper()
	c, err := sandboxclient.New(s.http.URL, sandboxclient.WithToken(token))
	require.NoError(s.t, err)
	s.t.Cleanup(func() { _ = c.Close() })
	return c
}

// raw is a connection without the client's good manners.
type raw struct {
	t *testing.T
	*websocket.Conn
}

func (s *site) dial(token string) *raw {
	s.t.Helper()
	d := websocket.Dialer{Subprotocols: []string{wire.Subprotocol}}
	c, res, err := d.Dial("ws"+strings.TrimPrefix(s.http.URL, "http")+wire.Path, http.Header{"Authorization": {"Bearer " + token}})
	require.NoError(s.t, err)
	_ = res.Body.Close()
	s.t.Cleanup(func() { _ = c.Close() })
	r := &raw{t: s.t, Conn: c}
	require.Equal(s.t, wire.KindHello, r.read().Kind)
	return r
}

func (r *raw) send(f wire.Frame) {
	r.t.Helper()
	require.NoError(r.t, r.WriteMessage(websocket.BinaryMessage, f.Append(nil)))
}

func (r *raw) request(stream uint32, req wire.Request, code string) {
	r.t.Helper()
	r.send(wire.RequestFrame(stream, req, []byte(code)))
}

// read returns the next frame.
func (r *raw) read() wire.Frame {
	r.t.Helper()
	require.NoError(r.t, r.SetReadDeadline(time.Now().Add(20*time.Second)))
	_, b, err := r.ReadMessage()
	require.NoError(r.t, err)
	f, err := wire.ParseFrame(b)
	require.NoError(r.t, err)
	return f
}

// until returns the next frame of a kind, skipping others.
func (r *raw) until(k wire.Kind) wire.Frame {
	r.t.Helper()
	for {
		if f := r.read(); f.Kind == k {
			return f
		}
	}
}

// closed returns the code with which the broker closes the connection.
func (r *raw) closed() int {
	r.t.Helper()
	for {
		require.NoError(r.t, r.SetReadDeadline(time.Now().Add(20*time.Second)))
		if _, _, err := r.ReadMessage(); err != nil {
			var e *websocket.CloseError
			require.ErrorAs(r.t, err, &e)
			return e.Code
		}
	}
}

// shell is a run of shell code, which goes with the frame.
func shell() wire.Request {
	return wire.Request{Op: wire.OpRun, Pool: "test", Program: &wire.Program{Language: "shell"}}
}

func deadline(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// eventually watches for a state that nothing reports.
func eventually(t *testing.T, what string, ok func() bool) {
	t.Helper()
	require.Eventually(t, ok, time.Minute, 5*time.Millisecond, what)
}

// syncBuffer is a log that can be read while it is written.
type syncBuffer struct {
	mu sync.Mutex // guards b
	b  strings.Builder
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

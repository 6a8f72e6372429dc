package brokertest

import (
	"crypto/x509"
	"io"
	"log"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/gorilla/websocket"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// writeTimeout bounds each write, so that a client which stops reading fails its
// test instead of hanging it.
const writeTimeout = 10 * time.Second

// Script speaks for the broker on one connection. The connection ends when it
// returns.
type Script func(*Conn)

// Server accepts connections and runs the script for each.
type Server struct {
	URL string // the base URL for the client

	script   Script
	scripts  sync.WaitGroup
	http     *httptest.Server
	upgrader websocket.Upgrader
	closing  chan struct{} // closed when the server ends

	mu       sync.Mutex // guards what follows
	conns    map[*Conn]struct{}
	accepted int
	pools    http.HandlerFunc
}

// New starts a server that ends with the test.
func New(t testing.TB, script Script) *Server {
	t.Helper()
	return start(t, script, (*httptest.Server).Start)
}

// NewTLS starts one with a certificate that nobody knows; see Certificate.
func NewTLS(t testing.TB, script Script) *Server {
	t.Helper()
	return start(t, script, (*httptest.Server).StartTLS)
}

func start(t testing.TB, script Script, start func(*httptest.Server)) *Server {
	s := &Server{
		script:   script,
		conns:    make(map[*Conn]struct{}),
		closing:  make(chan struct{}),
		upgrader: websocket.Upgrader{Subprotocols: []string{wire.Subprotocol}},
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+wire.PoolsPath, s.servePools)
	mux.HandleFunc("/", s.accept)
	s.http = httptest.NewUnstartedServer(mux)
	// Refused handshakes are what some tests are about.
	s.http.Config.ErrorLog = log.New(io.Discard, "", 0)
	start(s.http)
	s.URL = s.http.URL
	t.Cleanup(s.close)
	return s
}

// Certificate is the certificate of a server with TLS, its own authority.
func (s *Server) Certificate() *x509.Certificate { return s.http.Certificate() }

// Accepted is how many connections there have been.
func (s *Server) Accepted() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.accepted
}

// Pools makes the server list these pools from now on. Without it there are none.
func (s *Server) Pools(pools ...wire.Pool) {
	s.HandlePools(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = w.Write(wire.Marshal(pools))
	})
}

// HandlePools has handle answer the question for the pools from now on.
func (s *Server) HandlePools(handle http.HandlerFunc) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.pools = handle
}

func (s *Server) servePools(w http.ResponseWriter, r *http.Request) {
	s.mu.Lock()
	handle := s.pools
	s.mu.Unlock()
	if handle == nil {
		_, _ = w.Write([]byte("[]"))
		return
	}
	handle(w, r)
}

func (s *Server) accept(w http.ResponseWriter, r *http.Request) {
	ws, err := s.upgrader.Upgrade(w, r, nil)
	if err != nil {
		return // Upgrade has answered
	}
	c := &Conn{Header: r.Header, ws: ws, closing: s.closing, streams: make(map[uint32]*Stream)}
	s.mu.Lock()
	s.conns[c] = struct{}{}
	s.accepted++
	s.scripts.Add(1)
	s.mu.Unlock()
	defer s.scripts.Done()
	defer func() {
		s.mu.Lock()
		delete(s.conns, c)
		s.mu.Unlock()
		ws.Close()
	}()
	s.script(c)
}

func (s *Server) close() {
	close(s.closing)
	s.mu.Lock()
	for c := range s.conns {
		c.Cut()
	}
	s.mu.Unlock()
	s.http.Close()
	s.scripts.Wait()
}

// Conn is the broker's end of one connection.
type Conn struct {
	Header http.Header // of the client's handshake

	ws      *websocket.Conn
	closing <-chan struct{} // closed when the server ends
	writing sync.Mutex      // held while a message is written

	mu      sync.Mutex // guards what follows
	streams map[uint32]*Stream
}

// Hello greets with a long heartbeat and room for 100 streams.
func (c *Conn) Hello() {
	c.Send(wire.JSONFrame(wire.KindHello, 0, wire.Hello{Version: "test", HeartbeatMS: 10_000, MaxStreams: 100}))
}

// Send writes a frame. A failure shows when the script reads.
func (c *Conn) Send(f wire.Frame) { c.SendMessage(websocket.BinaryMessage, f.Append(nil)) }

// SendMessage writes any message, also one that is no frame.
func (c *Conn) SendMessage(kind int, data []byte) {
	c.writing.Lock()
	defer c.writing.Unlock()
	_ = c.ws.SetWriteDeadline(time.Now().Add(writeTimeout))
	_ = c.ws.WriteMessage(kind, data)
}

// Receive reads the client's next frame; ok is false at the connection's end.
func (c *Conn) Receive() (f wire.Frame, ok bool) {
	_, data, err := c.ws.ReadMessage()
	if err != nil {
		return wire.Frame{}, false
	}
	f, err = wire.ParseFrame(data)
	return f, err == nil
}

// Close ends the connection with a close code.
func (c *Conn) Close(code int, text string) {
	message := websocket.FormatCloseMessage(code, text)
	_ = c.ws.WriteControl(websocket.CloseMessage, message, time.Now().Add(writeTimeout))
	c.ws.Close()
}

// Cut ends the connection without a word.
func (c *Conn) Cut() { c.ws.NetConn().Close() }

// CloseReason reads until the connection ends and says why it did.
func (c *Conn) CloseReason() error {
	for {
		if _, _, err := c.ws.ReadMessage(); err != nil {
			return err
		}
	}
}

// Ping sends a ping.
func (c *Conn) Ping(payload string) {
	_ = c.ws.WriteControl(websocket.PingMessage, []byte(payload), time.Now().Add(writeTimeout))
}

// OnPong has handle called, while the script reads, for each pong.
func (c *Conn) OnPong(handle func(payload string)) {
	c.ws.SetPongHandler(func(payload string) error {
		handle(payload)
		return nil
	})
}

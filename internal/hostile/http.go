package hostile

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"sync"

	"github.com/sandbox-broker/sandbox-broker/internal/channel"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// Exec is one exec's stream, as the runner has it.
type Exec struct {
	Start channel.Start
	Code  []byte
	// In has the broker's frames.
	In *channel.FrameReader
	// W takes anything, also what is no frame.
	W http.ResponseWriter

	out  *channel.FrameWriter
	gone <-chan struct{}
}

// Send sends frames as they are; nothing checks them.
func (e *Exec) Send(frames ...wire.Frame) {
	for _, f := range frames {
		_ = e.out.Write(f) // the broker may have ended the stream
	}
}

// Answer says, truly or not, that the program has started.
func (e *Exec) Answer() {
	e.Send(wire.JSONFrame(wire.KindResponse, 0, channel.Started{New: !e.Start.AttachOnly}))
}

// Print sends bytes of stdout from an offset.
func (e *Exec) Print(at uint64, text string) {
	e.Send(wire.Frame{Kind: wire.KindStdout, Offset: at, Payload: []byte(text)})
}

// Exit sends an ending.
func (e *Exec) Exit(n wire.Ending) { e.Send(wire.JSONFrame(wire.KindExit, 0, n)) }

// Raw sends bytes past all framing.
func (e *Exec) Raw(b []byte) {
	_, _ = e.W.Write(b)
	_ = http.NewResponseController(e.W).Flush()
}

// Gone is closed when the broker has let go of the stream, whether that is read or not.
func (e *Exec) Gone() <-chan struct{} { return e.gone }

// AwaitEnd waits until the broker has let go of the stream.
func (e *Exec) AwaitEnd() {
	for {
		if _, err := e.In.Read(); err != nil {
			return
		}
	}
}

// Execs plays a runner that is honest but for its execs, which lie does.
func Execs(lie func(*Exec)) Play {
	return HTTP(func(w http.ResponseWriter, r *http.Request) {
		switch r.Method + " " + r.URL.Path {
		case channel.PathBind, channel.PathPrepare:
			_, _ = io.WriteString(w, "{}")
		case channel.PathStatus:
			_, _ = w.Write(wire.Marshal(channel.Status{Languages: []string{"shell", "python", "node"}}))
		default:
			serveExec(w, r, lie)
		}
	})
}

func serveExec(w http.ResponseWriter, r *http.Request, lie func(*Exec)) {
	in := channel.NewFrameReader(r.Body, wire.MaxControl+wire.MaxCode)
	f, err := in.Read()
	if err != nil || f.Kind != wire.KindRequest {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	e := &Exec{In: in, W: w, gone: r.Context().Done(), Code: append([]byte(nil), f.Payload[f.Offset:]...)}
	if json.Unmarshal(f.Payload[:f.Offset], &e.Start) != nil {
		w.WriteHeader(http.StatusBadRequest)
		return
	}
	e.out = channel.NewFrameWriter(w, http.NewResponseController(w).Flush)
	lie(e)
}

// HTTP plays a runner whose requests h answers.
func HTTP(h http.HandlerFunc) Play {
	return func(conn net.Conn) {
		var protocols http.Protocols
		protocols.SetUnencryptedHTTP2(true)
		l := &oneConn{conn: conn, closed: make(chan struct{})}
		srv := &http.Server{ //nolint:gosec // no client but the broker under test
			Handler: h, Protocols: &protocols, HTTP2: &http.HTTP2Config{MaxConcurrentStreams: 256},
			ConnState: func(_ net.Conn, s http.ConnState) {
				if s == http.StateClosed {
					_ = l.Close()
				}
			},
		}
		_ = srv.Serve(l)
		_ = srv.Close()
	}
}

// oneConn is a listener that has one connection to give.
type oneConn struct {
	conn   net.Conn
	once   sync.Once
	closed chan struct{}
}

// Accept implements net.Listener.
func (l *oneConn) Accept() (net.Conn, error) {
	if c := l.conn; c != nil {
		l.conn = nil
		return c, nil
	}
	<-l.closed
	return nil, net.ErrClosed
}

// Close implements net.Listener.
func (l *oneConn) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

// Addr implements net.Listener.
func (l *oneConn) Addr() net.Addr { return &net.UnixAddr{Name: "hostile"} }

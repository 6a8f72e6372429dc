package server

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"time"

	"github.com/gorilla/websocket"

	"github.com/sandbox-broker/sandbox-broker/broker"
	"github.com/sandbox-broker/sandbox-broker/internal/auth"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

const (
	// closeTimeout bounds the sending of a close frame.
	closeTimeout = 2 * time.Second
	// frameQueue bounds a stream's frames that its handler has not read yet.
	frameQueue = 16
	// dispatchTimeout bounds how long a stream whose queue is full may hold up the
	// connection.
	dispatchTimeout = time.Second
	// maxCloseReason is what fits into a close frame beside its code (RFC 6455, 5.5).
	maxCloseReason = 123
	// missedHeartbeats is how many may fail before a peer is taken for gone.
	missedHeartbeats = 3
)

// session is one client's connection. One goroutine reads; writers share a lock.
type session struct {
	srv    *Server
	caller auth.Identity
	log    *slog.Logger
	life   context.Context         //nolint:containedctx // the connection's own life, which no call has
	detach context.CancelCauseFunc // ends life with ErrDetached
	jobs   sync.WaitGroup          // streams

	// large says that the reader is in a large message, whose deadline stands. Only
	// the reader touches it; control frames are handled on its goroutine too.
	large bool

	write sync.Mutex // guards writing to conn
	conn  *websocket.Conn

	mu      sync.Mutex // guards the rest
	streams map[uint32]*stream
	last    uint32 // highest stream number opened
	leaving string // reason to go away, before conn exists
}

func newSession(s *Server, id auth.Identity) *session {
	sess := &session{srv: s, caller: id, log: s.opts.Log.With("tenant", id.Tenant, "subject", id.Subject), streams: map[uint32]*stream{}}
	sess.life, sess.detach = context.WithCancelCause(context.Background())
	return sess
}

// serve runs the connection until it ends, and then until its streams have let
// go; what they started goes on without them.
func (s *session) serve(conn *websocket.Conn) {
	s.setConn(conn)
	defer func() { _ = conn.Close() }()
	defer s.jobs.Wait()
	defer s.detach(broker.ErrDetached)
	stop := make(chan struct{})
	defer close(stop)
	go s.heartbeat(stop)
	if err := s.send(s.srv.hello()); err != nil {
		return
	}
	err := s.read()
	if e := wire.AsError(err); e != nil {
		s.refuse(e)
		return
	}
	s.log.Debug("connection ended", "error", err)
}

func (s *session) setConn(conn *websocket.Conn) {
	conn.SetReadLimit(wire.MaxClientMessage)
	alive := func(string) error {
		if s.large {
			return nil // pings must not stretch it
		}
		return conn.SetReadDeadline(time.Now().Add(missedHeartbeats * s.srv.opts.Heartbeat))
	}
	_ = alive("")
	conn.SetPongHandler(alive)
	answer := conn.PingHandler()
	conn.SetPingHandler(func(data string) error {
		_ = alive("")
		return answer(data)
	})
	s.write.Lock()
	s.conn = conn
	s.write.Unlock()
	s.mu.Lock()
	leaving := s.leaving
	s.mu.Unlock()
	if leaving != "" {
		s.goAway(leaving)
	}
}

// heartbeat pings, so that neither end nor a proxy takes a quiet connection for
// dead.
func (s *session) heartbeat(stop <-chan struct{}) {
	t := time.NewTicker(s.srv.opts.Heartbeat)
	defer t.Stop()
	for {
		select {
		case <-t.C:
			if err := s.conn.WriteControl(websocket.PingMessage, nil, time.Now().Add(s.srv.opts.WriteTimeout)); err != nil {
				return // the reader finds it
			}
		case <-stop:
			return
		}
	}
}

// read handles messages until the connection ends or one breaks the protocol,
// which is a *wire.Error.
func (s *session) read() error {
	for {
		kind, b, err := s.message()
		if errors.Is(err, websocket.ErrReadLimit) {
			return wire.Invalid("frame", wire.MaxClientMessage, "a message exceeds the limit of %d bytes", wire.MaxClientMessage)
		}
		if err != nil {
			return err
		}
		if err := s.conn.SetReadDeadline(time.Now().Add(missedHeartbeats * s.srv.opts.Heartbeat)); err != nil {
			return err
		}
		if kind != websocket.BinaryMessage {
			return wire.Invalid("frame", 0, "a text message came; frames are binary messages")
		}
		f, err := wire.ParseFrame(b)
		if err != nil {
			return err
		}
		if err := s.dispatch(f); err != nil {
			return err
		}
	}
}

// dispatch gives a frame to its stream. Frames for a stream that has ended are
// late and skipped.
func (s *session) dispatch(f wire.Frame) error {
	if !f.Kind.Known() {
		if f.Flags&wire.FlagOptional != 0 {
			return nil
		}
		return wire.Invalid("frame.kind", 0, "version 1 has no frame of %s", f.Kind)
	}
	if f.Kind == wire.KindRequest {
		return s.open(f)
	}
	s.mu.Lock()
	st, last := s.streams[f.Stream], s.last
	s.mu.Unlock()
	if st == nil {
		if f.Stream == 0 || f.Stream > last {
			return wire.Invalid("frame.stream", int64(last), "a %s frame names stream %d, which no request opened; frames are out of order", f.Kind, f.Stream)
		}
		return nil
	}
	return st.deliver(f)
}

// open starts a stream.
func (s *session) open(f wire.Frame) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if f.Stream == 0 || f.Stream <= s.last {
		return &wire.Error{Code: wire.CodeConflict, Field: "frame.stream", Limit: int64(s.last), Message: "a request must open a new stream with a number above all earlier ones; this one was used or passed already"}
	}
	s.last = f.Stream
	st := newStream(s, f.Stream)
	if len(s.streams) >= streamLimit {
		s.jobs.Go(func() {
			defer st.drop(nil)
			st.fail(&wire.Error{Code: wire.CodeExhausted, Field: "stream", Limit: MaxStreams, Message: "the connection has as many open streams as it may"})
		})
		return nil
	}
	s.streams[f.Stream] = st
	s.jobs.Go(func() {
		defer s.close(st)
		st.serve(f)
	})
	return nil
}

func (s *session) close(st *stream) {
	close(st.ended)
	st.drop(nil)
	s.mu.Lock()
	defer s.mu.Unlock()
	delete(s.streams, st.id)
}

// send writes one frame. An error means that the client is gone.
func (s *session) send(f wire.Frame) error {
	s.write.Lock()
	defer s.write.Unlock()
	if err := s.conn.SetWriteDeadline(time.Now().Add(s.srv.opts.WriteTimeout)); err != nil {
		return err
	}
	w, err := s.conn.NextWriter(websocket.BinaryMessage)
	if err != nil {
		return err
	}
	var head [wire.HeaderSize]byte
	payload := f.Payload
	f.Payload = nil
	if _, err := w.Write(f.Append(head[:0])); err != nil {
		return err
	}
	if _, err := w.Write(payload); err != nil {
		return err
	}
	return w.Close()
}

// refuse ends a connection that broke the protocol: the error in full, then a
// close frame with what fits.
func (s *session) refuse(e *wire.Error) {
	s.log.Info("connection refused", "code", e.Code, "field", e.Field, "limit", e.Limit)
	_ = s.send(wire.JSONFrame(wire.KindError, 0, e)) // it may be gone already
	s.closeWith(4000+e.Code.Status(), e.Message)
}

func (s *session) closeWith(code int, reason string) {
	if len(reason) > maxCloseReason {
		reason = reason[:maxCloseReason]
		for len(reason) > 0 && reason[len(reason)-1]&0xc0 == 0x80 {
			reason = reason[:len(reason)-1] // never half a character: RFC 6455 wants UTF-8
		}
		if n := len(reason); n > 0 && reason[n-1] >= 0xc0 {
			reason = reason[:n-1]
		}
	}
	_ = s.conn.WriteControl(websocket.CloseMessage, websocket.FormatCloseMessage(code, reason), time.Now().Add(closeTimeout))
}

// goAway asks the client to connect again and ends the connection; what it runs
// is detached.
func (s *session) goAway(reason string) {
	s.write.Lock()
	conn := s.conn
	s.write.Unlock()
	s.mu.Lock()
	s.leaving = reason
	s.mu.Unlock()
	if conn == nil {
		return // setConn sees it
	}
	_ = s.send(wire.JSONFrame(wire.KindGoAway, 0, wire.GoAway{Reason: reason}))
	s.closeWith(websocket.CloseServiceRestart, reason)
	s.detach(broker.ErrDetached)
	_ = conn.Close()
}

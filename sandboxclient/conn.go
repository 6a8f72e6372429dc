package sandboxclient

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/gorilla/websocket"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// Bounds of a connection.
const (
	// writeTimeout bounds the writing of each piece of a message.
	writeTimeout = 20 * time.Second
	// writePiece is how many bytes the broker must take within a writeTimeout.
	writePiece = 64 << 10
	// closeTimeout bounds the farewell; the connection ends with or without it.
	closeTimeout = time.Second
)

// Why this end gives up a connection, other than for a failure.
var (
	errIdle    = errors.New("sandboxclient: the connection is no longer needed")
	errRetired = errors.New("sandboxclient: the broker asked to leave the connection")
)

// conn is one WebSocket with its streams. The reader goroutine alone ends the
// streams of a broken connection, after it has delivered all that came before;
// everyone else only makes the connection fail.
type conn struct {
	client     *Client
	ws         *websocket.Conn
	hello      wire.Hello
	heartbeat  time.Duration
	dead       chan struct{}  // closed when the connection has failed
	pongs      chan string    // answers to the newest ping, for the heartbeat goroutine; capacity 1
	goroutines sync.WaitGroup // the reader and the heartbeat

	readBuffer bytes.Buffer // the reader's own

	// writing, of capacity 1, is the lock under which messages are written. It is
	// a channel so that a caller can give up waiting for it. It guards nextID and
	// each stream's over.
	writing chan struct{}
	nextID  uint32

	mu      sync.Mutex // guards what follows; no I/O happens under it
	streams map[uint32]*stream
	lastID  uint32 // the newest stream that was opened
	slots   int    // streams that are open or about to be
	retired bool   // takes no new streams
	parting error  // why this end says farewell; what follows from that is no reason
	err     error  // why the connection failed; nil while it works
}

func newConn(client *Client, ws *websocket.Conn) *conn {
	c := &conn{
		client: client, ws: ws,
		dead:    make(chan struct{}),
		pongs:   make(chan string, 1),
		writing: make(chan struct{}, 1),
		nextID:  1,
		streams: make(map[uint32]*stream),
	}
	ws.SetReadLimit(wire.MaxServerMessage)
	ws.SetPingHandler(c.onPing)
	ws.SetPongHandler(func(string) error { return c.heard() })
	return c
}

// run starts the connection's goroutines.
func (c *conn) run() {
	c.goroutines.Go(c.readLoop)
	c.goroutines.Go(c.heartbeatLoop)
}

// reserve takes room for one stream; false when there is none.
func (c *conn) reserve() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.retired || c.err != nil || c.slots >= c.hello.MaxStreams {
		return false
	}
	c.slots++
	return true
}

// retireIfIdle stops a connection without streams from taking new ones.
func (c *conn) retireIfIdle() bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.slots > 0 {
		return false
	}
	c.retired = true
	return true
}

// retire lets a connection finish its streams and take no new ones.
func (c *conn) retire() {
	c.mu.Lock()
	c.retired = true
	idle := c.slots == 0
	c.mu.Unlock()
	c.client.retired(c)
	if idle {
		c.fail(errRetired)
	}
}

// start sends the request that opens s. errNotSent means that another connection
// may be tried. The room taken with reserve goes to the stream, or back.
func (c *conn) start(ctx context.Context, s *stream, request wire.Frame) error {
	if err := c.lock(ctx); err != nil {
		c.release()
		return err
	}
	defer c.unlock()
	if !c.register(s) {
		c.release()
		return errNotSent
	}
	request.Stream = s.id
	if err := c.writeLocked(request); err != nil {
		// Part of it may have left; the reader ends the stream.
		return nil
	}
	if s.id == math.MaxUint32 {
		c.retire()
	}
	return nil
}

// register gives s the next number. The number must be taken under the write
// lock: numbers reach the broker in rising order.
func (c *conn) register(s *stream) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.err != nil || c.retired {
		return false
	}
	s.conn, s.id = c, c.nextID
	c.streams[s.id] = s
	c.lastID = s.id
	c.nextID++
	return true
}

// send writes a frame of an open stream; after the stream's last frame it does
// nothing. A failure to write is a failure of the connection, and its streams
// hear of it from the reader.
func (c *conn) send(s *stream, f wire.Frame) {
	if c.lock(context.Background()) != nil {
		return
	}
	defer c.unlock()
	if s.over {
		return
	}
	f.Stream = s.id
	_ = c.writeLocked(f)
}

// finish forgets a stream, after a last frame if there is one; it reports whether that
// was sent.
func (c *conn) finish(s *stream, last *wire.Frame) (sent bool) {
	if c.lock(context.Background()) == nil {
		if last != nil && !s.over {
			last.Stream = s.id
			sent = c.writeLocked(*last) == nil
		}
		s.over = true
		c.unlock()
	}
	c.mu.Lock()
	delete(c.streams, s.id)
	c.mu.Unlock()
	c.release()
	return sent
}

// release gives back the room of one stream.
func (c *conn) release() {
	c.mu.Lock()
	c.slots--
	leave := c.slots == 0 && c.retired
	c.mu.Unlock()
	if leave {
		c.fail(errRetired)
	}
	c.client.slotFreed(c)
}

// lock takes the write lock, unless ctx ends or the connection fails first.
func (c *conn) lock(ctx context.Context) error {
	select {
	case c.writing <- struct{}{}:
		return nil
	case <-c.dead:
		return errNotSent
	case <-ctx.Done():
		return fmt.Errorf("sandboxclient: waiting to send: %w", ctx.Err())
	}
}

func (c *conn) unlock() { <-c.writing }

// writeLocked writes one message. Every piece of it has a deadline of its own, so
// that a slow network is not taken for a dead one.
func (c *conn) writeLocked(f wire.Frame) error {
	err := c.writeMessage(f)
	// After a farewell whoever sent it is about to say why.
	if err != nil && !errors.Is(err, websocket.ErrCloseSent) {
		c.fail(fmt.Errorf("sending a %s frame: %w", f.Kind, err))
	}
	return err
}

func (c *conn) writeMessage(f wire.Frame) error {
	if err := c.ws.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
		return err
	}
	w, err := c.ws.NextWriter(websocket.BinaryMessage)
	if err != nil {
		return err
	}
	payload := f.Payload
	f.Payload = nil
	var header [wire.HeaderSize]byte
	if _, err := w.Write(f.Append(header[:0])); err != nil {
		return err
	}
	for len(payload) > 0 {
		n := min(len(payload), writePiece)
		if _, err := w.Write(payload[:n]); err != nil {
			return err
		}
		payload = payload[n:]
		if err := c.ws.SetWriteDeadline(time.Now().Add(writeTimeout)); err != nil {
			return err
		}
	}
	return w.Close()
}

// fail ends the connection. The first reason counts.
func (c *conn) fail(err error) {
	c.mu.Lock()
	first := c.err == nil
	if first {
		if c.parting != nil {
			err = c.parting
		}
		c.err = err
		close(c.dead)
	}
	c.mu.Unlock()
	if first {
		c.cut()
	}
}

// cut closes the socket, so that the reader and a writer return. TLS would first
// write its own farewell, which can block.
func (c *conn) cut() {
	nc := c.ws.NetConn()
	if t, ok := nc.(*tls.Conn); ok {
		nc = t.NetConn()
	}
	nc.Close()
}

// close ends the connection with a farewell.
func (c *conn) close(err error) {
	c.farewell(websocket.CloseNormalClosure, "", err)
	c.fail(err)
}

// farewell tells the broker that this end leaves. The reason is noted first: the
// broker's answer must not become it.
func (c *conn) farewell(code int, text string, reason error) {
	c.mu.Lock()
	if c.parting == nil {
		c.parting = reason
	}
	c.mu.Unlock()
	message := websocket.FormatCloseMessage(code, text)
	_ = c.ws.WriteControl(websocket.CloseMessage, message, time.Now().Add(closeTimeout))
}

package sandboxclient

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"time"

	"github.com/gorilla/websocket"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// Bounds of the heartbeat.
const (
	// defaultHeartbeat holds when the broker names no interval.
	defaultHeartbeat = 10 * time.Second
	// minHeartbeat and maxHeartbeat bound what a broker may ask for.
	minHeartbeat = 10 * time.Millisecond
	maxHeartbeat = 5 * time.Minute
	// missedHeartbeats is after how many silent intervals a connection is dead.
	missedHeartbeats = 3
)

// heartbeatInterval is what a Hello asks for, within bounds.
func heartbeatInterval(ms int64) time.Duration {
	if ms <= 0 {
		return defaultHeartbeat
	}
	ms = min(ms, maxHeartbeat.Milliseconds())
	return max(time.Duration(ms)*time.Millisecond, minHeartbeat)
}

// readLoop delivers frames until the connection fails, and then ends what is left
// of the streams.
func (c *conn) readLoop() {
	c.fail(c.readAll())
	c.mu.Lock()
	err := c.err
	streams := c.streams
	c.streams = nil
	c.mu.Unlock()
	c.client.gone(c)
	for _, s := range streams {
		s.lost(err)
	}
}

func (c *conn) readAll() error {
	for {
		if err := c.heard(); err != nil {
			return err
		}
		f, err := c.readFrame()
		if err == nil {
			err = c.deliver(f)
		} else {
			err = readError(err)
		}
		if errors.Is(err, ErrProtocol) {
			c.complain(err)
		}
		if err != nil {
			return err
		}
	}
}

// readFrame reads one message. The frame's payload holds until the next call.
func (c *conn) readFrame() (wire.Frame, error) {
	kind, r, err := c.ws.NextReader()
	if err != nil {
		return wire.Frame{}, err
	}
	if kind != websocket.BinaryMessage {
		return wire.Frame{}, protocolErrorf("it sent a text message")
	}
	c.readBuffer.Reset()
	if _, err := c.readBuffer.ReadFrom(r); err != nil {
		return wire.Frame{}, err
	}
	f, err := wire.ParseFrame(c.readBuffer.Bytes())
	if err != nil {
		return wire.Frame{}, protocolErrorf("%v", err)
	}
	return f, nil
}

// deliver hands a frame to its stream. It does not block.
func (c *conn) deliver(f wire.Frame) error {
	if !f.Kind.Known() {
		if f.Flags&wire.FlagOptional != 0 {
			return nil
		}
		return protocolErrorf("it sent a frame of the unknown %s that must not be skipped", f.Kind)
	}
	if f.Stream == 0 {
		return c.deliverControl(f)
	}
	c.mu.Lock()
	s, opened := c.streams[f.Stream], f.Stream <= c.lastID
	c.mu.Unlock()
	switch {
	case s != nil:
		return s.receive(f)
	case opened:
		return nil // of a stream that has ended here; it crossed our last frame
	default:
		return protocolErrorf("it sent a %s on stream %d, which was never opened", f.Kind, f.Stream)
	}
}

// deliverControl handles the frames that speak of the connection itself.
func (c *conn) deliverControl(f wire.Frame) error {
	switch f.Kind {
	case wire.KindGoAway:
		var g wire.GoAway
		if err := decode(f, &g); err != nil {
			return err
		}
		c.retire()
		return nil
	case wire.KindError:
		return decodeError(f)
	default:
		return protocolErrorf("it sent a %s on stream 0", f.Kind)
	}
}

// heard moves the deadline by which the broker must be heard again.
func (c *conn) heard() error {
	if c.heartbeat == 0 {
		return nil // before Hello the deadline is the dial's
	}
	return c.ws.SetReadDeadline(time.Now().Add(missedHeartbeats * c.heartbeat))
}

// onPing leaves the answer to the heartbeat goroutine: the reader must not wait
// for a write. Only the newest ping needs an answer.
func (c *conn) onPing(payload string) error {
	select {
	case <-c.pongs:
	default:
	}
	c.pongs <- payload // the reader alone sends, so there is room
	return c.heard()
}

// heartbeatLoop pings, and answers pings, until the connection fails.
func (c *conn) heartbeatLoop() {
	ticker := time.NewTicker(c.heartbeat)
	defer ticker.Stop()
	for {
		var err error
		select {
		case <-c.dead:
			return
		case <-ticker.C:
			err = c.ws.WriteControl(websocket.PingMessage, nil, time.Now().Add(c.heartbeat))
		case payload := <-c.pongs:
			err = c.ws.WriteControl(websocket.PongMessage, []byte(payload), time.Now().Add(c.heartbeat))
		}
		// A timeout means that a message is being written, which has its own deadline,
		// and after a farewell whoever sent it is about to say why.
		if err != nil && !isTimeout(err) && !errors.Is(err, websocket.ErrCloseSent) {
			c.fail(fmt.Errorf("sending a heartbeat: %w", err))
		}
	}
}

// complain tells the broker why the connection ends.
func (c *conn) complain(err error) {
	reason := err.Error()
	const maxReason = 120 // a close frame holds 125 bytes, two of them the code
	if len(reason) > maxReason {
		reason = strings.ToValidUTF8(reason[:maxReason], "")
	}
	c.farewell(websocket.CloseProtocolError, reason, err)
}

// closeCodeBase plus an HTTP status is the code with which the broker closes.
const closeCodeBase = 4000

// readError explains why reading ended.
func readError(err error) error {
	var closed *websocket.CloseError
	switch {
	case errors.As(err, &closed):
		if code, ok := wire.CodeOfStatus(closed.Code - closeCodeBase); ok {
			return wire.Errorf(code, "the broker closed the connection: %s", closed.Text)
		}
		return fmt.Errorf("the broker closed the connection: %w", err)
	case isTimeout(err):
		return fmt.Errorf("the broker was not heard for %d heartbeats: %w", missedHeartbeats, err)
	case errors.Is(err, websocket.ErrReadLimit):
		return protocolErrorf("it sent a message of more than %d bytes", wire.MaxServerMessage)
	}
	return err
}

func isTimeout(err error) bool {
	var ne net.Error
	return errors.As(err, &ne) && ne.Timeout()
}

// decode reads a control frame's JSON. Unknown keys are skipped: a newer broker
// may say more than this client knows.
func decode(f wire.Frame, v any) error {
	if err := json.Unmarshal(f.Payload, v); err != nil {
		return protocolErrorf("its %s frame is not the JSON it must be: %v", f.Kind, err)
	}
	return nil
}

// decodeError reads a KindError frame, which is an error in any case.
func decodeError(f wire.Frame) error {
	e := new(wire.Error)
	if err := decode(f, e); err != nil {
		return err
	}
	if e.Code == "" {
		return protocolErrorf("its error frame has no code")
	}
	return e
}

package sandboxclient

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"time"

	"github.com/gorilla/websocket"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// Bounds of connecting.
const (
	// dialTimeout bounds a dial with its handshakes, up to the broker's Hello.
	dialTimeout = 30 * time.Second
	// ioBuffer is the size of a connection's read and write buffers, in bytes.
	ioBuffer = 16 << 10
	// maxErrorBody bounds the body of a refused handshake, in bytes.
	maxErrorBody = 64 << 10
)

// dial connects, and returns the connection with the broker's Hello read. Its
// goroutines are not running yet.
func (c *Client) dial(ctx context.Context) (*conn, error) {
	header, err := c.header()
	if err != nil {
		return nil, err
	}
	tlsConfig, err := c.opts.tlsConfig()
	if err != nil {
		return nil, fmt.Errorf("sandboxclient: %w", err)
	}
	// The WebSocket library looks at the context's deadline only, so the network
	// connection itself hears of a cancellation, until release is called.
	release := func() bool { return true }
	dialer := websocket.Dialer{
		Proxy:           http.ProxyFromEnvironment,
		ReadBufferSize:  ioBuffer,
		WriteBufferSize: ioBuffer,
		Subprotocols:    []string{wire.Subprotocol},
		TLSClientConfig: tlsConfig,
		NetDialContext: func(ctx context.Context, network, address string) (net.Conn, error) {
			var d net.Dialer
			nc, err := d.DialContext(ctx, network, address)
			if err == nil {
				release = context.AfterFunc(ctx, func() { nc.Close() })
			}
			return nc, err
		},
	}
	ws, resp, err := dialer.DialContext(ctx, c.endpoint.String(), header)
	if err != nil {
		release()
		return nil, c.dialError(resp, err)
	}
	cn, err := c.greet(ctx, ws)
	if !release() && err == nil {
		err = ctx.Err()
	}
	if err != nil {
		ws.Close()
		return nil, fmt.Errorf("sandboxclient: connecting to %s: %w", c.endpoint.Host, err)
	}
	return cn, nil
}

// header is what every request shows, with the token of this moment.
func (c *Client) header() (http.Header, error) {
	token, err := c.opts.currentToken()
	if err != nil {
		return nil, fmt.Errorf("sandboxclient: %w", err)
	}
	header := http.Header{"User-Agent": {"sandboxclient"}}
	if token != "" {
		header.Set("Authorization", "Bearer "+token)
	}
	return header, nil
}

// dialError explains a failed handshake: the broker's own words if it sent any.
func (c *Client) dialError(resp *http.Response, err error) error {
	if resp == nil || !errors.Is(err, websocket.ErrBadHandshake) {
		return fmt.Errorf("sandboxclient: connecting to %s: %w", c.endpoint.Host, err)
	}
	defer resp.Body.Close()
	return c.refusal(resp)
}

// refusal is the error of an answer that is none.
func (c *Client) refusal(resp *http.Response) error {
	body, _ := io.ReadAll(io.LimitReader(resp.Body, maxErrorBody))
	e := new(wire.Error)
	if json.Unmarshal(body, e) != nil || e.Code == "" {
		// Not the broker itself, or not this version: a proxy, or another server.
		return fmt.Errorf("sandboxclient: connecting to %s: the server answered %s, which no sandbox-broker of this version says: %w",
			c.endpoint.Host, resp.Status, statusError(resp.StatusCode))
	}
	if seconds, err := strconv.ParseUint(resp.Header.Get("Retry-After"), 10, 32); err == nil && e.RetryAfterMS == 0 {
		e.RetryAfterMS = int64(seconds) * 1000
	}
	return e
}

// statusError maps the statuses that say the same whoever sends them.
func statusError(status int) error {
	switch status {
	case http.StatusUnauthorized, http.StatusForbidden, http.StatusTooManyRequests, http.StatusServiceUnavailable:
		code, _ := wire.CodeOfStatus(status)
		return wire.Errorf(code, "%s", http.StatusText(status))
	case http.StatusBadGateway, http.StatusGatewayTimeout:
		return wire.Errorf(wire.CodeUnavailable, "%s", http.StatusText(status))
	}
	return websocket.ErrBadHandshake
}

// greet checks the subprotocol and reads the broker's first frame. ctx bounds it.
func (c *Client) greet(ctx context.Context, ws *websocket.Conn) (*conn, error) {
	if ws.Subprotocol() != wire.Subprotocol {
		return nil, fmt.Errorf("the server does not speak %s", wire.Subprotocol)
	}
	cn := newConn(c, ws)
	if deadline, ok := ctx.Deadline(); ok {
		if err := ws.SetReadDeadline(deadline); err != nil {
			return nil, err
		}
	}
	f, err := cn.readFrame()
	if err != nil {
		return nil, fmt.Errorf("waiting for its hello: %w", readError(err))
	}
	if f.Kind == wire.KindError && f.Stream == 0 {
		return nil, decodeError(f)
	}
	if f.Kind != wire.KindHello || f.Stream != 0 {
		return nil, protocolErrorf("its first frame is a %s on stream %d", f.Kind, f.Stream)
	}
	if err := decode(f, &cn.hello); err != nil {
		return nil, err
	}
	if cn.hello.MaxStreams < 1 {
		return nil, protocolErrorf("its hello allows %d streams", cn.hello.MaxStreams)
	}
	cn.heartbeat = heartbeatInterval(cn.hello.HeartbeatMS)
	return cn, nil
}

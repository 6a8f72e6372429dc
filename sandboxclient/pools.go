package sandboxclient

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"time"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// Bounds of asking for the pools.
const (
	// poolsTimeout bounds the question with its answer.
	poolsTimeout = 30 * time.Second
	// maxPools bounds the answer, in bytes.
	maxPools = 4 << 20
)

// Pool describes a pool to those who may use it.
type Pool = wire.Pool

// Pools lists the pools that the caller may use, each with its limits and with
// what it has in stock at this moment. It takes at most 30 s. When ctx ends it
// returns an error that matches ctx.Err().
//
// Each call makes a connection of its own: it is for people and for tools that
// look now and then.
func (c *Client) Pools(ctx context.Context) ([]Pool, error) {
	if err := c.usable(ctx); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, poolsTimeout)
	defer cancel()
	go func() { // ends with the call: cancel is deferred
		select {
		case <-c.closing:
			cancel()
		case <-ctx.Done():
		}
	}()
	pools, err := c.askPools(ctx)
	if err == nil {
		return pools, nil
	}
	select {
	case <-c.closing:
		return nil, ErrClosed
	default:
		return nil, err
	}
}

func (c *Client) askPools(ctx context.Context) ([]Pool, error) {
	tlsConfig, err := c.opts.tlsConfig()
	if err != nil {
		return nil, fmt.Errorf("sandboxclient: %w", err)
	}
	header, err := c.header()
	if err != nil {
		return nil, err
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.poolsURL(), nil)
	if err != nil {
		return nil, fmt.Errorf("sandboxclient: asking for the pools: %w", err)
	}
	req.Header = header
	transport := &http.Transport{Proxy: http.ProxyFromEnvironment, TLSClientConfig: tlsConfig, DisableKeepAlives: true}
	defer transport.CloseIdleConnections()
	// RoundTrip and not a client: a redirect would carry the token elsewhere.
	resp, err := transport.RoundTrip(req)
	if err != nil {
		return nil, fmt.Errorf("sandboxclient: asking %s for the pools: %w", c.endpoint.Host, err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, c.refusal(resp)
	}
	body, err := io.ReadAll(io.LimitReader(resp.Body, maxPools+1))
	if err != nil {
		return nil, fmt.Errorf("sandboxclient: reading the pools: %w", err)
	}
	if len(body) > maxPools {
		return nil, protocolErrorf("the list of its pools exceeds %d bytes", maxPools)
	}
	var pools []Pool
	if err := json.Unmarshal(body, &pools); err != nil {
		return nil, protocolErrorf("the list of its pools is not the JSON it must be: %v", err)
	}
	return pools, nil
}

// poolsURL is where the pools are asked for, beside the WebSocket.
func (c *Client) poolsURL() string {
	u := *c.endpoint
	u.Scheme = "http"
	if c.endpoint.Scheme == "wss" {
		u.Scheme = "https"
	}
	return u.JoinPath("..", "..", wire.PoolsPath).String()
}

package sandboxclient

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

const (
	// settleWait bounds how long the answer to an Acquire that was given up is
	// awaited in the background.
	settleWait = 30 * time.Second
	// releaseWait bounds giving back, in the background, a lease that came too late.
	releaseWait = 10 * time.Second
	// releaseAttempts bounds how often Release is sent when the connection is lost
	// before the answer. Releasing twice does no harm.
	releaseAttempts = 3
)

// Lease is a hold on one sandbox until it is released, its time is over, or the
// sandbox is lost. Its methods may be called from many goroutines at once.
type Lease struct {
	client   *Client
	handle   string
	response wire.Response

	mu       sync.Mutex // guards released
	released bool
}

// AcquireOption changes what [Client.Acquire] asks for.
type AcquireOption func(*wire.Request)

// WithTTL bounds the lease's life, in steps of a millisecond. Without it the
// pool's default holds.
func WithTTL(ttl time.Duration) AcquireOption {
	return func(r *wire.Request) { r.TTLMS = milliseconds(ttl) }
}

// Acquire takes a lease on a sandbox of the pool. It waits while there is none
// free. When ctx ends it gives up its place and returns an error that matches
// ctx.Err(); a lease that was granted in the same moment is given back.
func (c *Client) Acquire(ctx context.Context, pool string, opts ...AcquireOption) (*Lease, error) {
	if err := c.usable(ctx); err != nil {
		return nil, err
	}
	req := wire.Request{Op: wire.OpAcquire, Pool: pool}
	for _, opt := range opts {
		opt(&req)
	}
	ctx, span := c.startSpan(ctx, "Acquire", pool, nil, nil)
	injectTrace(ctx, &req)
	s := newCall()
	resp, err := c.call(ctx, s, req)
	endSpan(span, s.outcome(), err)
	if err != nil {
		return nil, err
	}
	return &Lease{client: c, handle: resp.Lease, response: *resp}, nil
}

// call sends a request that is only answered, and waits for the answer.
func (c *Client) call(ctx context.Context, s *stream, req wire.Request) (*wire.Response, error) {
	if err := c.open(ctx, s, req, nil); err != nil {
		return nil, err
	}
	select {
	case <-s.ended:
	case <-ctx.Done():
		select {
		case <-s.ended: // both at once: the answer counts
		default:
			c.giveUp(s, req.Op)
			return nil, fmt.Errorf("sandboxclient: waiting for the answer to %s: %w", req.Op, ctx.Err())
		}
	}
	s.finish()
	r := s.outcome()
	switch {
	case r.refused != nil:
		return nil, r.refused
	case r.lost != nil:
		return nil, fmt.Errorf("%w: %w", ErrStartUnknown, r.lost)
	}
	return r.response, nil
}

// giveUp leaves a call whose caller has gone. A lease that comes nevertheless is
// released; if that fails it ends with its time.
func (c *Client) giveUp(s *stream, op wire.Op) {
	c.goBackground(func() {
		if op == wire.OpAcquire {
			s.cancel()
		}
		timer := time.NewTimer(settleWait)
		defer timer.Stop()
		select {
		case <-s.ended:
		case <-timer.C:
			s.conn.retire() // its broker may be stuck
		}
		s.finish()
		resp := s.outcome().response
		if op != wire.OpAcquire || resp == nil {
			return
		}
		ctx, cancel := context.WithTimeout(context.Background(), releaseWait)
		defer cancel()
		_ = c.release(ctx, resp.Lease)
	})
}

// release ends a lease. One that is already over is as good as released.
func (c *Client) release(ctx context.Context, handle string) error {
	var err error
	for range releaseAttempts {
		req := wire.Request{Op: wire.OpRelease, Lease: handle}
		injectTrace(ctx, &req)
		_, err = c.call(ctx, newCall(), req)
		if !errors.Is(err, ErrStartUnknown) {
			break
		}
	}
	if errors.Is(err, ErrLeaseExpired) {
		return nil
	}
	return err
}

// Release ends the lease and has its sandbox destroyed, with what runs in it.
// Releasing twice, or after the lease's end, is no error.
func (l *Lease) Release(ctx context.Context) error {
	l.mu.Lock()
	released := l.released
	l.mu.Unlock()
	if released {
		return nil
	}
	if err := l.client.usable(ctx); err != nil {
		return err
	}
	if err := l.client.release(ctx, l.handle); err != nil {
		return err
	}
	l.mu.Lock()
	l.released = true
	l.mu.Unlock()
	return nil
}

// Handle names the lease to the broker, for its logs and for other calls. Whoever
// has it and the tenant's credentials can use the lease.
func (l *Lease) Handle() string { return l.handle }

// Expires is the lease's hard end; zero if the broker named none.
func (l *Lease) Expires() time.Time {
	if l.response.ExpiresMS == 0 {
		return time.Time{}
	}
	return time.UnixMilli(l.response.ExpiresMS)
}

// Isolation names what isolates the sandbox, such as the RuntimeClass.
func (l *Lease) Isolation() string { return l.response.Isolation }

// Lease takes up a lease by its handle, which [Lease.Handle] gave, perhaps to
// another process of the same tenant. It asks nobody: whether the lease still
// exists shows when it is used. Expires and Isolation are not known of it.
func (c *Client) Lease(handle string) *Lease {
	return &Lease{client: c, handle: handle}
}

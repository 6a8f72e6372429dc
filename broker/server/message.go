package server

import (
	"context"
	"errors"
	"io"
	"time"

	"golang.org/x/sync/semaphore"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

const (
	// smallMessage is what any connection may make the broker hold while it sends a
	// message, in bytes: all frames but requests with much code fit.
	smallMessage = 64 << 10
	// largeBudget bounds what all connections together may make it hold beyond
	// that, in bytes.
	largeBudget = 64 << 20
	// DefaultLargeTimeout bounds how long one large message may take, and how long
	// it may wait for its share of the budget.
	DefaultLargeTimeout = 30 * time.Second
)

// message reads one whole message. What it holds of large ones is counted before
// it is read, so that callers cannot fill the broker's memory with messages that
// they never finish.
func (s *session) message() (kind int, b []byte, err error) {
	kind, r, err := s.conn.NextReader()
	if err != nil {
		return 0, nil, err
	}
	b = make([]byte, 0, firstRead)
	var share share
	defer func() {
		s.large = false
		share.release(s.srv.large)
	}()
	for {
		if len(b) == cap(b) {
			grown := 2 * cap(b)
			if grown > smallMessage {
				if err := s.claim(&share, grown); err != nil {
					return 0, nil, err
				}
			}
			b = append(make([]byte, 0, grown), b...)
		}
		n, err := r.Read(b[len(b):cap(b)])
		b = b[:len(b)+n]
		if errors.Is(err, io.EOF) {
			return kind, b, nil
		}
		if err != nil {
			return 0, nil, err
		}
	}
}

// firstRead is the buffer a message starts with, in bytes.
const firstRead = 512

// share is what one message has of the budget.
type share struct{ bytes int64 }

func (sh *share) release(budget *semaphore.Weighted) { budget.Release(sh.bytes) }

// claim takes a buffer of n bytes from the budget; the smaller one before it is
// still held. The first claim starts the clock of the whole message.
func (s *session) claim(sh *share, n int) error {
	if sh.bytes == 0 {
		s.large = true
		if err := s.conn.SetReadDeadline(time.Now().Add(s.srv.opts.LargeTimeout)); err != nil {
			return err
		}
	}
	ctx, cancel := context.WithTimeout(s.life, s.srv.opts.LargeTimeout)
	defer cancel()
	if err := s.srv.large.Acquire(ctx, int64(n)); err != nil {
		if s.life.Err() != nil {
			return err
		}
		return &wire.Error{Code: wire.CodeExhausted, Field: "frame", Limit: largeBudget, RetryAfterMS: 1000,
			Message: "the broker is reading as many large requests as it may"}
	}
	sh.bytes += int64(n)
	return nil
}

package channel

import (
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"go.uber.org/goleak"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

func testContext(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), testTimeout)
	t.Cleanup(cancel)
	return ctx
}

// noLeaks requires that the test leaves no goroutine behind. Tests that use it
// are not parallel: they would see each other's.
func noLeaks(t *testing.T) {
	t.Helper()
	t.Cleanup(func() { goleak.VerifyNone(t) })
}

// openTo makes the broker's end of a channel whose runner, once keyed, is serve.
// At the test's end the client is closed if the test has not done so.
func openTo(t *testing.T, serve func(net.Conn)) *Client {
	t.Helper()
	ours, theirs := net.Pipe()
	return openOver(t, ours, theirs, serve)
}

// openOver is openTo over the two ends of a connection.
func openOver(t *testing.T, ours, theirs net.Conn, serve func(net.Conn)) *Client {
	t.Helper()
	noLeaks(t)
	id := NewIdentity()
	var runner sync.WaitGroup
	t.Cleanup(func() {
		_ = theirs.Close()
		runner.Wait()
	})
	runner.Go(func() {
		if id.Accept(theirs) == nil {
			serve(theirs)
		}
	})
	c, err := Open(testContext(t), ours, testKey(1), "")
	require.NoError(t, err)
	require.Equal(t, id.Boot(), c.Boot())
	t.Cleanup(c.Close)
	return c
}

// openHTTP is openTo with a runner that is a handler behind net/http.
func openHTTP(t *testing.T, h http.HandlerFunc) *Client {
	t.Helper()
	return openTo(t, serveHTTP(h))
}

// serveHTTP is a runner that is a handler behind net/http.
func serveHTTP(h http.HandlerFunc) func(net.Conn) {
	return func(conn net.Conn) {
		var protocols http.Protocols
		protocols.SetUnencryptedHTTP2(true)
		l := &oneConn{conn: conn, closed: make(chan struct{})}
		srv := &http.Server{Handler: h, Protocols: &protocols, ConnState: func(_ net.Conn, s http.ConnState) {
			if s == http.StateClosed {
				_ = l.Close()
			}
		}}
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

func (l *oneConn) Accept() (net.Conn, error) {
	if c := l.conn; c != nil {
		l.conn = nil
		return c, nil
	}
	<-l.closed
	return nil, net.ErrClosed
}

func (l *oneConn) Close() error {
	l.once.Do(func() { close(l.closed) })
	return nil
}

func (l *oneConn) Addr() net.Addr { return &net.UnixAddr{Name: "pipe"} }

// closed requires that the client is done, by itself or because of Close.
func closed(t *testing.T, c *Client) {
	t.Helper()
	select {
	case <-c.Done():
	case <-time.After(testTimeout):
		require.Fail(t, "Done is still open")
	}
}

func running(t *testing.T, c *Client) {
	t.Helper()
	select {
	case <-c.Done():
		require.Fail(t, "the channel has ended")
	default:
	}
}

func TestBindAndStatus(t *testing.T) {
	want := Status{Boot: "b", Bound: true, Execs: 3, Version: "v1"}
	c := openHTTP(t, func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		switch r.Method + " " + r.URL.Path {
		case PathStatus:
			_, _ = w.Write(wire.Marshal(want))
		case PathBind:
			if string(b) == string(wire.Marshal(Bind{Lease: "l", Tenant: "t"})) {
				return
			}
			w.WriteHeader(http.StatusConflict)
			_, _ = w.Write(wire.Marshal(wire.Errorf(wire.CodeConflict, "another lease has it")))
		}
	})
	got, err := c.Status(testContext(t))
	require.NoError(t, err)
	require.Equal(t, want, got)
	require.NoError(t, c.Bind(testContext(t), Bind{Lease: "l", Tenant: "t"}))
	require.ErrorIs(t, c.Bind(testContext(t), Bind{Lease: "other", Tenant: "t"}), wire.ErrConflict)

	running(t, c)
	c.Close()
	closed(t, c)
	c.Close() // once more does no harm
	_, err = c.Status(testContext(t))
	require.Error(t, err)
}

// endless writes until nobody takes it any more.
func endless(w io.Writer, b []byte) {
	for {
		if _, err := w.Write(b); err != nil {
			return
		}
	}
}

// headed answers well, but with these headers.
func headed(w http.ResponseWriter, values ...string) {
	w.Header()["X-Large"] = values
	_, _ = io.WriteString(w, "{}")
}

func TestHostileAnswers(t *testing.T) {
	for name, tt := range map[string]struct {
		answer http.HandlerFunc
		want   string // part of the error
	}{
		"garbage": {
			func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("\x00\x01{{{")) }, "not the JSON",
		},
		"JSON of another shape": {
			func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte(`{"execs":"many"}`)) }, "not the JSON",
		},
		"nothing": {
			func(http.ResponseWriter, *http.Request) {}, "not the JSON",
		},
		"good JSON beyond the limit": {
			func(w http.ResponseWriter, _ *http.Request) {
				_, _ = w.Write(wire.Marshal(Status{Boot: strings.Repeat("b", maxAnswer)}))
			}, "not the JSON",
		},
		"an answer without an end": {
			func(w http.ResponseWriter, _ *http.Request) { endless(w, bytes.Repeat([]byte(" "), 4096)) }, "not the JSON",
		},
		"an answer that breaks off": {
			func(w http.ResponseWriter, _ *http.Request) {
				_, _ = w.Write([]byte(`{"boot":`))
				_ = http.NewResponseController(w).Flush()
				panic(http.ErrAbortHandler)
			}, "reading the answer",
		},
		// HTTP/2 breaks the channel off where a header's value passes the limit, and
		// gives no better reason.
		"a huge header": {
			func(w http.ResponseWriter, _ *http.Request) { headed(w, strings.Repeat("h", 1<<20)) }, "COMPRESSION_ERROR",
		},
		"a header beyond the limit": {
			func(w http.ResponseWriter, _ *http.Request) { headed(w, strings.Repeat("h", maxResponseHeader+1024)) }, "COMPRESSION_ERROR",
		},
		"many headers beyond the limit": {
			func(w http.ResponseWriter, _ *http.Request) { headed(w, make([]string, maxResponseHeader/32)...) }, "header list",
		},
		"interim answers without an end": {
			func(w http.ResponseWriter, r *http.Request) {
				for r.Context().Err() == nil {
					w.WriteHeader(http.StatusEarlyHints)
				}
			}, "header list too large",
		},
		"a redirect": {
			func(w http.ResponseWriter, r *http.Request) {
				http.Redirect(w, r, "http://elsewhere/", http.StatusFound)
			}, "answered status 302",
		},
		"an error that is no JSON": {
			func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "sorry", http.StatusConflict) }, "answered status 409",
		},
		"an error without a code": {
			func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(http.StatusConflict)
				_, _ = w.Write([]byte(`{"message":"no"}`))
			}, "answered status 409",
		},
		"an error without an end": {
			func(w http.ResponseWriter, _ *http.Request) {
				w.WriteHeader(http.StatusConflict)
				endless(w, bytes.Repeat([]byte("e"), 4096))
			}, "answered status 409",
		},
	} {
		t.Run(name, func(t *testing.T) {
			c := openHTTP(t, tt.answer)
			_, err := c.Status(testContext(t))
			require.ErrorContains(t, err, tt.want)
			require.NotErrorIs(t, err, context.DeadlineExceeded)
			c.Close()
			closed(t, c)
		})
	}
}

func TestAnAnswerThatNeverEndsEndsWithTheClient(t *testing.T) {
	for name, part := range map[string]string{"after nothing": "", "in the middle": `{"boot":`} {
		t.Run(name, func(t *testing.T) {
			arrived := make(chan struct{})
			c := openHTTP(t, func(w http.ResponseWriter, r *http.Request) {
				if part != "" {
					_, _ = io.WriteString(w, part)
					_ = http.NewResponseController(w).Flush()
				}
				close(arrived)
				<-r.Context().Done()
			})
			ctx, asked := testContext(t), make(chan error, 1)
			go func() {
				_, err := c.Status(ctx)
				asked <- err
			}()
			<-arrived
			c.Close()
			closed(t, c)
			err := <-asked
			require.Error(t, err)
			require.NotErrorIs(t, err, context.DeadlineExceeded, "Close did not end the call")
		})
	}
}

func TestACallEndsWithItsContextAndTheChannelStays(t *testing.T) {
	arrived := make(chan struct{}, 2)
	c := openHTTP(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/v1/bind" {
			arrived <- struct{}{}
			<-r.Context().Done()
			return
		}
		_, _ = io.WriteString(w, "{}")
	})
	ctx, cancel := context.WithCancel(testContext(t))
	asked := make(chan error, 1)
	go func() { asked <- c.Bind(ctx, Bind{}) }()
	<-arrived
	cancel()
	require.ErrorIs(t, <-asked, context.Canceled)
	running(t, c)
	_, err := c.Status(testContext(t))
	require.NoError(t, err, "one stalled call costs the others nothing")
}

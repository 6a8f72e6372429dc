package sandboxclient_test

import (
	"context"
	"fmt"
	"io"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gorilla/websocket"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/brokertest"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

func TestConnectionLost(t *testing.T) {
	t.Run("before the response", func(t *testing.T) {
		var requests atomic.Int32
		c, _ := connect(t, brokertest.Each(func(s *brokertest.Stream) {
			requests.Add(1)
			s.Conn.Cut()
		}))
		res, err := run(t, c, sandboxclient.Code{})
		assert.ErrorIs(t, err, sandboxclient.ErrStartUnknown)
		assert.Nil(t, res)
		require.NoError(t, c.Close())
		assert.EqualValues(t, 1, requests.Load(), "nothing may be started twice")
	})
	t.Run("by an error on stream 0", func(t *testing.T) {
		c, _ := connect(t, brokertest.Each(func(s *brokertest.Stream) {
			s.Respond(accepted)
			s.Conn.Send(wire.JSONFrame(wire.KindError, 0, wire.Errorf(wire.CodeUnauthenticated, "the token has expired")))
			s.Conn.Close(4401, "")
		}))
		_, err := run(t, c, sandboxclient.Code{})
		var lost *sandboxclient.DisconnectedError
		assert.ErrorAs(t, err, &lost)
		assert.ErrorIs(t, err, sandboxclient.ErrUnauthenticated)
		assert.ErrorContains(t, err, "the token has expired")
	})
	t.Run("by a close code alone", func(t *testing.T) {
		c, _ := connect(t, brokertest.Each(func(s *brokertest.Stream) { s.Conn.Close(4503, "stopping") }))
		_, err := run(t, c, sandboxclient.Code{})
		assert.ErrorIs(t, err, sandboxclient.ErrStartUnknown)
		assert.ErrorIs(t, err, sandboxclient.ErrUnavailable)
	})
	t.Run("and made again", func(t *testing.T) {
		c, server := connect(t, brokertest.Each(func(s *brokertest.Stream) {
			s.Respond(accepted)
			if s.Code == "cut" {
				s.Conn.Send(wire.JSONFrame(wire.KindError, 0, wire.Errorf(wire.CodeInternal, "no longer")))
				s.Conn.Close(4500, "")
				return
			}
			s.Exit(exited(0))
		}))
		_, err := run(t, c, sandboxclient.Code{Source: "cut"})
		require.Error(t, err)
		_, err = run(t, c, sandboxclient.Code{})
		require.NoError(t, err)
		assert.Equal(t, 2, server.Accepted())
	})
}

func TestProtocolErrors(t *testing.T) {
	data := func(k wire.Kind, offset uint64, n int) wire.Frame {
		return wire.Frame{Kind: k, Offset: offset, Payload: make([]byte, n)}
	}
	tests := map[string]struct {
		script func(*brokertest.Stream) // after the response
		text   string
	}{
		"credit exceeded": {func(s *brokertest.Stream) {
			for offset := 0; offset <= sandboxclient.OutputWindow; offset += wire.MaxData {
				s.Send(data(wire.KindStdout, uint64(offset), wire.MaxData))
			}
		}, "has credit up to"},
		"gap":               {func(s *brokertest.Stream) { s.Send(data(wire.KindStdout, 5, 1)) }, "from offset 5, but 0 bytes"},
		"repeated bytes":    {func(s *brokertest.Stream) { s.Stdout("ab"); s.Send(data(wire.KindStdout, 0, 1)) }, "from offset 0, but 2 bytes"},
		"unknown kind":      {func(s *brokertest.Stream) { s.Send(wire.Frame{Kind: 0x7f}) }, "unknown kind 0x7f"},
		"second response":   {func(s *brokertest.Stream) { s.Respond(accepted) }, "second response"},
		"a client's kind":   {func(s *brokertest.Stream) { s.Send(wire.Frame{Kind: wire.KindDone}) }, "only clients send"},
		"window for stdout": {func(s *brokertest.Stream) { s.Send(wire.Window{FD: wire.Stdout}.Frame(0)) }, "credit for stdout"},
		"backwards":         {func(s *brokertest.Stream) { s.Stdout("abc"); s.Send(wire.Discarded{FD: wire.Stdout, To: 3}.Frame(0)) }, "discarded stdout up to offset 3"},
		"discarded stdin":   {func(s *brokertest.Stream) { s.Send(wire.Discarded{To: 3}.Frame(0)) }, "only outputs"},
		"broken window":     {func(s *brokertest.Stream) { s.Send(data(wire.KindWindow, 0, 3)) }, "3 bytes of payload"},
		"stream not opened": {func(s *brokertest.Stream) { s.Conn.Send(wire.Frame{Kind: wire.KindExit, Stream: 99}) }, "never opened"},
		"exit without JSON": {func(s *brokertest.Stream) { s.Send(wire.Frame{Kind: wire.KindExit, Payload: []byte("\xff")}) }, "not the JSON"},
		"empty ending":      {func(s *brokertest.Stream) { s.Exit(wire.Ending{}) }, "no reason"},
		"error without code": {func(s *brokertest.Stream) {
			s.Fail(&wire.Error{Message: "?"})
		}, "no code"},
		"second hello": {func(s *brokertest.Stream) { s.Conn.Hello() }, "hello on stream 0"},
		"short message": {func(s *brokertest.Stream) {
			s.Conn.SendMessage(websocket.BinaryMessage, []byte{1, 2, 3})
		}, "shorter than the frame header"},
		"text message": {func(s *brokertest.Stream) {
			s.Conn.SendMessage(websocket.TextMessage, []byte("hello"))
		}, "text message"},
		"oversized message": {func(s *brokertest.Stream) {
			s.Conn.SendMessage(websocket.BinaryMessage, make([]byte, wire.MaxCode))
		}, "a message of more than"},
		"oversized data": {func(s *brokertest.Stream) { s.Send(data(wire.KindStdout, 0, wire.MaxData+1)) }, "exceeds the limit"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			// The consumer takes nothing, so no credit is given back, until the client
			// has left.
			w := newBlockedWriter()
			c, _ := connect(t, brokertest.Each(func(s *brokertest.Stream) {
				s.Respond(accepted)
				tt.script(s)
				s.Await(wire.KindDone) // never comes
				close(w.opened)
			}))
			_, err := run(t, c, sandboxclient.Code{Stdout: w})
			require.ErrorIs(t, err, sandboxclient.ErrProtocol)
			var lost *sandboxclient.DisconnectedError
			require.ErrorAs(t, err, &lost)
			assert.ErrorContains(t, err, tt.text)
		})
	}
	t.Run("output before the response", func(t *testing.T) {
		c, _ := connect(t, brokertest.Each(func(s *brokertest.Stream) { s.Stdout("x") }))
		_, err := run(t, c, sandboxclient.Code{})
		require.ErrorIs(t, err, sandboxclient.ErrProtocol)
		assert.ErrorIs(t, err, sandboxclient.ErrStartUnknown)
	})
	t.Run("the broker hears why", func(t *testing.T) {
		heard := make(chan error, 1)
		c, _ := connect(t, func(conn *brokertest.Conn) {
			conn.Hello()
			if f, ok := conn.Receive(); ok {
				conn.Send(wire.Frame{Kind: 0x7f, Stream: f.Stream})
			}
			heard <- conn.CloseReason()
		})
		_, err := run(t, c, sandboxclient.Code{})
		require.ErrorIs(t, err, sandboxclient.ErrProtocol)
		var closed *websocket.CloseError
		require.ErrorAs(t, <-heard, &closed)
		assert.Equal(t, websocket.CloseProtocolError, closed.Code)
		assert.Contains(t, closed.Text, "unknown kind 0x7f")
	})
}

func TestNewerBrokersAreUnderstood(t *testing.T) {
	c, _ := connect(t, brokertest.Each(func(s *brokertest.Stream) {
		s.Send(wire.Frame{Kind: 0x7f, Flags: wire.FlagOptional, Payload: []byte("news")})
		s.Send(wire.Frame{Kind: wire.KindResponse, Payload: []byte(`{"exec":"e1","colour":"blue"}`)})
		s.Send(wire.Frame{Kind: wire.KindExit, Payload: []byte(`{"reason":"exited","exit_code":0,"mood":"good"}`)})
		// Late frames of a stream that has ended are of no interest.
		s.Send(wire.Frame{Kind: wire.KindStdout, Offset: 77})
	}))
	for range 2 {
		_, err := run(t, c, sandboxclient.Code{})
		require.NoError(t, err)
	}
}

func TestGoAway(t *testing.T) {
	left := make(chan struct{})
	c, server := connect(t, brokertest.Each(func(s *brokertest.Stream) {
		s.Respond(accepted)
		if s.Request.Op == wire.OpAcquire {
			return
		}
		if s.Code == "old" {
			s.Conn.Send(wire.JSONFrame(wire.KindGoAway, 0, wire.GoAway{Reason: "restart"}))
			s.Stdout("going")
			s.Await(wire.KindSignal)
			s.Stdout(", gone")
			s.Exit(exited(0))
			s.Await(wire.KindDone)
			_, more := s.Next()
			if !more {
				close(left)
			}
			return
		}
		s.Exit(exited(0))
	}))
	seen := make(lines, 10)
	cmd := newLease(t, c).Script("python", "old")
	cmd.Stdout = seen
	require.NoError(t, cmd.Start(testContext(t)))
	assert.Equal(t, "going", seen.next(t))

	_, err := run(t, c, sandboxclient.Code{})
	require.NoError(t, err)
	assert.Equal(t, 2, server.Accepted(), "new streams go to a new connection")

	require.NoError(t, cmd.Signal("SIGUSR1"))
	require.NoError(t, cmd.Wait())
	assert.Equal(t, ", gone", seen.next(t))
	<-left // the old connection was closed when its last stream had ended
}

func TestManyStreamsShareAConnection(t *testing.T) {
	const streams = 50
	var all sync.WaitGroup
	all.Add(streams)
	c, server := connect(t, brokertest.Each(func(s *brokertest.Stream) {
		s.Respond(accepted)
		all.Done()
		all.Wait() // every one of them is open now
		s.Stdout(strings.Repeat(s.Code, 20_000))
		s.Exit(exited(0))
	}))
	errs := make(chan error, streams)
	for i := range streams {
		go func() {
			source := fmt.Sprintf("%02d", i)
			res, err := c.Run(testContext(t), sandboxclient.Code{Source: source})
			if err == nil && string(res.Stdout) != strings.Repeat(source, 20_000) {
				err = fmt.Errorf("stream %d got another's output", i)
			}
			errs <- err
		}()
	}
	for range streams {
		assert.NoError(t, <-errs)
	}
	assert.Equal(t, 1, server.Accepted())
}

func TestMaxStreamsOpensAnotherConnection(t *testing.T) {
	const streams = 5
	var all sync.WaitGroup
	all.Add(streams)
	c, server := connect(t, func(conn *brokertest.Conn) {
		conn.Send(wire.JSONFrame(wire.KindHello, 0, wire.Hello{MaxStreams: 2}))
		conn.Serve(func(s *brokertest.Stream) {
			s.Respond(accepted)
			all.Done()
			all.Wait()
			s.Exit(exited(0))
		})
	})
	errs := make(chan error, streams)
	for range streams {
		go func() {
			_, err := c.Run(testContext(t), sandboxclient.Code{})
			errs <- err
		}()
	}
	for range streams {
		require.NoError(t, <-errs)
	}
	assert.Equal(t, 3, server.Accepted())
}

func TestSlowConsumerHoldsUpOnlyItself(t *testing.T) {
	c, _ := connect(t, brokertest.Each(func(s *brokertest.Stream) {
		s.Respond(accepted)
		s.Stdout(strings.Repeat("x", 4*wire.DefaultWindow))
		s.Exit(exited(0))
	}))
	slow := newBlockedWriter()
	done := make(chan error, 1)
	go func() {
		_, err := c.Run(testContext(t), sandboxclient.Code{Stdout: slow})
		done <- err
	}()
	<-slow.entered
	for range 3 {
		res, err := run(t, c, sandboxclient.Code{})
		require.NoError(t, err)
		assert.Len(t, res.Stdout, 4*wire.DefaultWindow)
	}
	close(slow.opened)
	require.NoError(t, <-done)
}

func TestSlowStdoutDoesNotHoldUpStderr(t *testing.T) {
	c, _ := connect(t, brokertest.Each(func(s *brokertest.Stream) {
		s.Respond(accepted)
		s.Stdout("x")
		s.Stderr(strings.Repeat("y", 3*wire.DefaultWindow))
		s.Stderr("end")
		s.Exit(exited(0))
	}))
	slow := newBlockedWriter()
	r, w := io.Pipe()
	done := make(chan error, 1)
	go func() {
		_, err := c.Run(testContext(t), sandboxclient.Code{Stdout: slow, Stderr: w})
		w.Close()
		done <- err
	}()
	got := make([]byte, 3*wire.DefaultWindow+3)
	_, err := io.ReadFull(r, got)
	require.NoError(t, err)
	close(slow.opened)
	require.NoError(t, <-done)
}

func TestHeartbeatLossIsNoticed(t *testing.T) {
	hello := wire.Hello{HeartbeatMS: 200, MaxStreams: 10}
	t.Run("silent broker", func(t *testing.T) {
		silent := make(chan struct{})
		c, _ := connect(t, func(conn *brokertest.Conn) {
			conn.Send(wire.JSONFrame(wire.KindHello, 0, hello))
			conn.Receive()
			<-silent // without reading it answers no ping either
		})
		t.Cleanup(func() { close(silent) })
		_, err := run(t, c, sandboxclient.Code{})
		require.ErrorIs(t, err, sandboxclient.ErrStartUnknown)
		assert.ErrorContains(t, err, "not heard for 3 heartbeats")
	})
	t.Run("quiet program", func(t *testing.T) {
		c, _ := connect(t, func(conn *brokertest.Conn) {
			conn.Send(wire.JSONFrame(wire.KindHello, 0, hello))
			conn.Serve(func(s *brokertest.Stream) {
				s.Respond(accepted)
				time.Sleep(time.Second) // the point of the test: five heartbeats of quiet
				s.Exit(exited(0))
			})
		})
		_, err := run(t, c, sandboxclient.Code{})
		require.NoError(t, err)
	})
	t.Run("pings are answered", func(t *testing.T) {
		answered := make(chan string, 1)
		c, _ := connect(t, func(conn *brokertest.Conn) {
			conn.OnPong(func(payload string) { answered <- payload })
			conn.Hello()
			conn.Ping("are you there")
			conn.Serve(func(s *brokertest.Stream) {
				s.Respond(accepted)
				if <-answered == "are you there" {
					s.Exit(exited(0))
				}
			})
		})
		_, err := run(t, c, sandboxclient.Code{})
		require.NoError(t, err)
	})
}

func TestClose(t *testing.T) {
	started := make(chan struct{})
	c, _ := connect(t, brokertest.Each(func(s *brokertest.Stream) {
		s.Respond(accepted)
		close(started)
	}))
	done := make(chan error, 1)
	go func() {
		_, err := c.Run(context.Background(), sandboxclient.Code{})
		done <- err
	}()
	<-started
	require.NoError(t, c.Close())
	err := <-done
	assert.ErrorIs(t, err, sandboxclient.ErrClosed)
	require.NoError(t, c.Close())
	_, err = run(t, c, sandboxclient.Code{})
	assert.ErrorIs(t, err, sandboxclient.ErrClosed)
	_, err = c.Acquire(context.Background(), "p")
	assert.ErrorIs(t, err, sandboxclient.ErrClosed)
}

package sandboxclient_test

import (
	"context"
	"errors"
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

// Must hold: a connection that breaks under a program is made again, and the caller
// sees each byte once.
func TestAProgramOutlivesItsConnection(t *testing.T) {
	for name, leave := range map[string]func(*brokertest.Conn){
		"cut":     (*brokertest.Conn).Cut,
		"restart": func(c *brokertest.Conn) { c.Close(websocket.CloseServiceRestart, "restart") },
		"goaway": func(c *brokertest.Conn) {
			c.Send(wire.JSONFrame(wire.KindGoAway, 0, wire.GoAway{Reason: "restart"}))
			c.Close(websocket.CloseServiceRestart, "restart")
		},
		"unavailable": func(c *brokertest.Conn) { c.Close(4503, "restart") },
	} {
		t.Run(name, func(t *testing.T) {
			done := make(chan struct{})
			c, server := connect(t, brokertest.Each(func(s *brokertest.Stream) {
				s.Respond(accepted)
				if s.Request.Op == wire.OpRun {
					s.Stdout("one ")
					s.Stderr("err")
					leave(s.Conn)
					return
				}
				assert.Equal(t, "e1", s.Request.Exec)
				s.Stdout("two")
				s.Exit(exited(0))
				s.Await(wire.KindDone)
				close(done)
			}))
			res, err := run(t, c, sandboxclient.Code{})
			require.NoError(t, err)
			assert.Equal(t, "one two", string(res.Stdout))
			assert.Equal(t, "err", string(res.Stderr))
			assert.Equal(t, "e1", res.Exec)
			<-done
			assert.Equal(t, 2, server.Accepted())
		})
	}
	t.Run("silence", func(t *testing.T) {
		silent := make(chan struct{})
		var before atomic.Bool
		c, _ := connect(t, func(conn *brokertest.Conn) {
			conn.Send(wire.JSONFrame(wire.KindHello, 0, wire.Hello{HeartbeatMS: 50, MaxStreams: 10}))
			if !before.Swap(true) {
				if f, ok := conn.Receive(); ok {
					conn.Send(wire.Frame{Kind: wire.KindResponse, Stream: f.Stream, Payload: []byte(`{"exec":"e1"}`)})
				}
				<-silent // without reading it answers no ping either
				return
			}
			conn.Serve(func(s *brokertest.Stream) {
				s.Respond(accepted)
				s.Exit(exited(0))
			})
		})
		t.Cleanup(func() { close(silent) })
		_, err := run(t, c, sandboxclient.Code{})
		require.NoError(t, err)
	})
}

// Must hold: credit that was granted while there was no connection is not lost with it.
func TestCreditOutlivesTheConnection(t *testing.T) {
	const window = sandboxclient.OutputWindow
	w := newBlockedWriter()
	consumed := make(chan struct{})
	total := 0
	out := writerFunc(func(p []byte) (int, error) {
		n, _ := w.Write(p)
		if total += n; total == window {
			close(consumed)
		}
		return n, nil
	})
	serve := brokertest.Each(func(s *brokertest.Stream) {
		s.Respond(accepted)
		if s.Request.Op == wire.OpRun {
			s.Stdout(strings.Repeat("x", window))
			s.Conn.Close(websocket.CloseServiceRestart, "restart")
			return
		}
		assert.Equal(t, wire.Credit{Acked: window, Limit: window}, *s.Request.Stdout)
		s.Stdout("end")
		s.Exit(exited(0))
	})
	var before atomic.Bool
	c, _ := connect(t, func(conn *brokertest.Conn) {
		if before.Swap(true) {
			// The attach is on its way, and says that there is no credit.
			close(w.opened)
			<-consumed
		}
		serve(conn)
	})
	_, err := run(t, c, sandboxclient.Code{Stdout: out})
	require.NoError(t, err)
	assert.Equal(t, window+len("end"), total)
}

// Must hold: an ending that came counts, whatever happens to the connection then.
func TestLostAfterTheEnding(t *testing.T) {
	c, _ := connect(t, brokertest.Each(func(s *brokertest.Stream) {
		s.Respond(accepted)
		if s.Request.Op == wire.OpAttach {
			return // it is only confirmed
		}
		s.Stdout("all")
		s.Exit(exited(0))
		s.Conn.Cut()
	}))
	for range 20 {
		res, err := run(t, c, sandboxclient.Code{})
		if errors.Is(err, sandboxclient.ErrStartUnknown) {
			continue // the connection of the run before was not known to be broken
		}
		require.NoError(t, err)
		assert.Equal(t, "all", string(res.Stdout))
	}
}

// Must hold: an ending is confirmed, if need be over another connection.
func TestAnEndingIsConfirmedAfterACut(t *testing.T) {
	const attempts = 50
	confirmed := make(chan uint64, attempts)
	c, _ := connect(t, brokertest.Each(func(s *brokertest.Stream) {
		s.Respond(accepted)
		if s.Request.Op == wire.OpAttach {
			s.Exit(exited(0))
			if _, ok := s.Await(wire.KindDone); ok {
				confirmed <- s.Request.Stdout.Acked
			}
			return
		}
		s.Stdout("all")
		s.Exit(exited(0))
		s.Conn.Cut()
	}))
	for range attempts { // the confirmation may be faster than the cut
		if _, err := run(t, c, sandboxclient.Code{}); err != nil {
			require.ErrorIs(t, err, sandboxclient.ErrStartUnknown)
		}
		select {
		case acked := <-confirmed:
			assert.EqualValues(t, 3, acked)
			return
		case <-time.After(50 * time.Millisecond):
		}
	}
	t.Fatal("it was never confirmed")
}

// Must hold: the programs of one connection come back over one, and not all at once.
func TestManyProgramsComeBack(t *testing.T) {
	// A machine that stands still for a moment makes many waits end at once: then the cut
	// is made again.
	var spread time.Duration
	for range 3 {
		if spread = comeBack(t, 60); spread > sandboxclient.ResumeSpread/3 {
			return
		}
	}
	t.Fatalf("all came back within %s", spread)
}

// comeBack cuts the connection of many programs, and returns how far apart the first and
// the last of them came back.
func comeBack(t *testing.T, programs int) time.Duration {
	t.Helper()
	var mu sync.Mutex
	var came []time.Time
	var all sync.WaitGroup
	all.Add(programs)
	c, server := connect(t, brokertest.Each(func(s *brokertest.Stream) {
		s.Respond(accepted)
		if s.Request.Op == wire.OpRun {
			all.Done()
			all.Wait()
			s.Conn.Cut()
			return
		}
		mu.Lock()
		came = append(came, time.Now())
		mu.Unlock()
		s.Exit(exited(0))
	}))
	errs := make(chan error, programs)
	for range programs {
		go func() {
			_, err := c.Run(testContext(t), sandboxclient.Code{})
			errs <- err
		}()
	}
	for range programs {
		require.NoError(t, <-errs)
	}
	assert.Equal(t, 2, server.Accepted())
	require.Len(t, came, programs)
	first, last := came[0], came[0]
	for _, at := range came {
		if at.Before(first) {
			first = at
		}
		if at.After(last) {
			last = at
		}
	}
	return last.Sub(first)
}

// Must hold: the input goes on where the program stands, with what is kept.
func TestStdinGoesOnWhereTheProgramStands(t *testing.T) {
	const text = "0123456789abcdef"
	got := make(chan []wire.Frame, 1)
	c, _ := connect(t, brokertest.Each(func(s *brokertest.Stream) {
		s.Respond(accepted)
		if s.Request.Op == wire.OpRun {
			s.GrantStdin(8)
			f, _ := s.Await(wire.KindStdin)
			assert.Equal(t, text[:8], string(f.Payload))
			s.TakeStdin(3, 11)
			s.Await(wire.KindStdin)
			s.Conn.Cut()
			return
		}
		s.TakeStdin(5, 13)
		var frames []wire.Frame
		for {
			f, ok := s.Next()
			if !ok {
				return
			}
			if f.Kind == wire.KindStdin {
				frames = append(frames, f)
				s.TakeStdin(f.Offset+uint64(len(f.Payload)), 100)
			}
			if f.Kind == wire.KindStdinEnd {
				got <- append(frames, f)
				s.Exit(exited(0))
				return
			}
		}
	}))
	_, err := run(t, c, sandboxclient.Code{Stdin: strings.NewReader(text)})
	require.NoError(t, err)
	frames := <-got
	at, in := uint64(5), ""
	for _, f := range frames[:len(frames)-1] {
		require.Equal(t, at, f.Offset)
		at += uint64(len(f.Payload))
		in += string(f.Payload)
	}
	assert.Equal(t, text[5:], in)
	assert.EqualValues(t, len(text), frames[len(frames)-1].Offset)
}

// After a client came back, how much input it sent before is the sandbox's word. A lie
// ends that program alone: the connection, and what else it carries, goes on.
func TestALieAboutInputHurtsNoOtherProgram(t *testing.T) {
	c, s := connect(t, brokertest.Each(func(s *brokertest.Stream) {
		s.Respond(accepted)
		switch {
		case s.Request.Op == wire.OpAttach:
			s.TakeStdin(1000, 2000)
			s.Next()
		case s.Request.Program.Stdin:
			s.GrantStdin(8)
			s.Await(wire.KindStdin)
			s.Conn.Cut()
		default:
			s.Exit(exited(0))
		}
	}))
	_, err := run(t, c, sandboxclient.Code{Stdin: strings.NewReader("0123456789abcdef")})
	require.ErrorIs(t, err, sandboxclient.ErrInternal)
	require.ErrorContains(t, err, "acknowledged 1000 bytes of stdin")
	_, err = run(t, c, sandboxclient.Code{})
	require.NoError(t, err)
	require.Equal(t, 2, s.Accepted(), "the second connection lives")
}

// Must hold: answers that pass are asked for again; others end the call with an error
// of their own, and never with an exit.
func TestAnswersToAnAttach(t *testing.T) {
	for name, tt := range map[string]struct {
		answer *wire.Error
		passes bool
	}{
		"unavailable": {wire.Errorf(wire.CodeUnavailable, "not now"), true},
		"moved":       {&wire.Error{Code: wire.CodeUnavailable, Reason: wire.ReasonMoved, Message: "elsewhere"}, true},
		"exhausted":   {&wire.Error{Code: wire.CodeExhausted, Message: "full", RetryAfterMS: 1}, true},
		"unknown yet": {wire.Errorf(wire.CodeNotFound, "no such exec"), true},
		"confirmed":   {&wire.Error{Code: wire.CodeNotFound, Reason: wire.ReasonConfirmed, Message: "over"}, false},
		"not shared":  {wire.Errorf(wire.CodeLeaseExpired, "the lease has ended"), true},
		"expired":     {wire.Errorf(wire.CodeLeaseExpired, "the lease has ended"), false},
		"unknown":     {wire.Errorf(wire.CodeNotFound, "no such exec"), false},
		"superseded":  {&wire.Error{Code: wire.CodeConflict, Reason: wire.ReasonSuperseded, Message: "another"}, false},
		"bad offset":  {wire.Invalid("stdout.acked", 3, "too far"), false},
		"forbidden":   {wire.Errorf(wire.CodeForbidden, "no"), false},
	} {
		for _, responds := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				var mu sync.Mutex
				asked := 0
				c, _ := connect(t, brokertest.Each(func(s *brokertest.Stream) {
					if s.Request.Op == wire.OpRun {
						s.Respond(accepted)
						s.Stdout("begun")
						s.Conn.Cut()
						return
					}
					mu.Lock()
					asked++
					n := asked
					mu.Unlock()
					if n > 2 || responds {
						s.Respond(accepted)
					}
					if n <= 2 {
						s.Fail(tt.answer)
						return
					}
					s.Exit(exited(0))
				}))
				if !tt.passes {
					c.SetStartDoubt(0) // the program is not young
				}
				res, err := run(t, c, sandboxclient.Code{})
				assert.Equal(t, "begun", string(res.Stdout))
				if tt.passes {
					require.NoError(t, err)
					return
				}
				require.ErrorIs(t, err, &wire.Error{Code: tt.answer.Code})
				var lost *sandboxclient.DisconnectedError
				require.ErrorAs(t, err, &lost)
				assert.Equal(t, "e1", lost.Exec)
				assert.Zero(t, res.Ending)
				assert.Equal(t, 1, asked)
			})
		}
	}
}

// Must hold: who is told that the exec has moved attaches again, and who is superseded
// is told so, on the stream that started it too.
func TestAnswersToAStart(t *testing.T) {
	c, _ := connect(t, brokertest.Each(func(s *brokertest.Stream) {
		s.Respond(accepted)
		switch {
		case s.Request.Op == wire.OpAttach:
			s.Exit(exited(0))
		case s.Code == "moved":
			s.Fail(&wire.Error{Code: wire.CodeUnavailable, Reason: wire.ReasonMoved, Message: "elsewhere"})
		default:
			s.Fail(&wire.Error{Code: wire.CodeConflict, Reason: wire.ReasonSuperseded, Message: "another"})
		}
	}))
	_, err := run(t, c, sandboxclient.Code{Source: "moved"})
	require.NoError(t, err)
	_, err = run(t, c, sandboxclient.Code{Source: "superseded"})
	require.ErrorIs(t, err, sandboxclient.ErrConflict)
	require.ErrorAs(t, err, new(*sandboxclient.DisconnectedError))
}

// away is a broker that starts one program and takes no connection any more.
func away(s *brokertest.Stream) {
	if s.Request.Op == wire.OpAttach {
		s.Conn.Cut()
		return
	}
	s.Respond(wire.Response{Exec: "e1", Lease: "l1"})
	s.Stdout("begun")
	s.Conn.Cut()
}

// Must hold: coming back is given up, in time.
func TestComingBackIsBounded(t *testing.T) {
	t.Run("without a deadline", func(t *testing.T) {
		c, server := connect(t, brokertest.Each(away))
		c.SetResumeWindow(400 * time.Millisecond)
		res, err := c.Run(context.Background(), sandboxclient.Code{})
		require.ErrorAs(t, err, new(*sandboxclient.DisconnectedError))
		require.ErrorContains(t, err, "could not be reached again in time")
		assert.Equal(t, "begun", string(res.Stdout))
		assert.LessOrEqual(t, server.Accepted(), 6, "it waits between two attempts")
	})
	t.Run("by the context", func(t *testing.T) {
		c, _ := connect(t, brokertest.Each(away))
		c.SetCancelWait(200 * time.Millisecond)
		ctx, cancel := context.WithTimeout(context.Background(), 300*time.Millisecond)
		defer cancel()
		_, err := c.Run(ctx, sandboxclient.Code{})
		require.ErrorIs(t, err, context.DeadlineExceeded)
	})
	t.Run("by Close", func(t *testing.T) {
		c, _ := connect(t, brokertest.Each(away))
		seen := make(lines, 1)
		done := make(chan error, 1)
		go func() {
			_, err := c.Run(context.Background(), sandboxclient.Code{Stdout: seen})
			done <- err
		}()
		seen.next(t)
		require.NoError(t, c.Close())
		err := <-done
		require.ErrorIs(t, err, sandboxclient.ErrClosed)
		require.ErrorAs(t, err, new(*sandboxclient.DisconnectedError))
	})
}

// Must hold: a program that the caller gave up while its connection was away is told
// to end when there is one again.
func TestAnAbandonedProgramIsTold(t *testing.T) {
	told := make(chan struct{})
	open := make(chan struct{})
	c, _ := connect(t, brokertest.Each(func(s *brokertest.Stream) {
		if s.Request.Op == wire.OpRun {
			s.Respond(accepted)
			s.Stdout("begun")
			s.Conn.Cut()
			return
		}
		select {
		case <-open:
		default:
			s.Conn.Cut()
			return
		}
		s.Respond(accepted)
		if _, ok := s.Await(wire.KindCancel); ok {
			s.Exit(wire.Ending{Reason: wire.ReasonCanceled})
			close(told)
		}
	}))
	c.SetCancelWait(50 * time.Millisecond)
	ctx, cancel := context.WithCancel(context.Background())
	seen := make(lines, 1)
	done := make(chan error, 1)
	go func() {
		_, err := c.Run(ctx, sandboxclient.Code{Stdout: seen})
		done <- err
	}()
	seen.next(t)
	cancel()
	require.ErrorIs(t, <-done, context.Canceled)
	close(open)
	<-told
}

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

// Must hold: an ending that came counts, whatever happens to the connection then.
func TestLostAfterTheEnding(t *testing.T) {
	c, server := connect(t, brokertest.Each(func(s *brokertest.Stream) {
		s.Respond(accepted)
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
	assert.LessOrEqual(t, server.Accepted(), 21)
}

// Must hold: the programs of one connection come back over one, and not all at once.
func TestManyProgramsComeBack(t *testing.T) {
	const programs = 60
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
	assert.Greater(t, last.Sub(first), sandboxclient.ResumeSpread/3)
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
		"expired":     {wire.Errorf(wire.CodeLeaseExpired, "the lease has ended"), false},
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

func TestAttach(t *testing.T) {
	c, _ := connect(t, brokertest.Programs(func(p *brokertest.Program) {
		p.Stdout("0123456789")
		p.Stderr("error")
		p.AwaitClients(2)
		p.Stdout("end")
		p.Exit(exited(3))
	}))
	cmd := newLease(t, c).Command("x")
	require.Empty(t, cmd.Handle())
	require.NoError(t, cmd.Start(testContext(t)))
	assert.Equal(t, "exec-1", cmd.Handle())

	var out, errs strings.Builder
	again, err := c.Attach(testContext(t), cmd.Handle(), sandboxclient.AttachOptions{Stdout: &out, Stderr: &errs, StdoutOffset: 4})
	require.NoError(t, err)
	var exit *sandboxclient.ExitError
	require.ErrorAs(t, again.Wait(), &exit)
	assert.Equal(t, 3, exit.ExitCode())
	assert.Equal(t, "456789end", out.String())
	assert.Equal(t, "error", errs.String())
	assert.Equal(t, "exec-1", again.Handle())
	require.ErrorIs(t, cmd.Wait(), sandboxclient.ErrConflict)
	require.Error(t, again.Start(testContext(t)), "it runs already")

	_, err = c.Attach(testContext(t), "nothing", sandboxclient.AttachOptions{})
	require.ErrorIs(t, err, sandboxclient.ErrNotFound)
	require.NotErrorIs(t, err, sandboxclient.ErrStartUnknown)
	_, err = c.Attach(testContext(t), "", sandboxclient.AttachOptions{})
	require.Error(t, err)
}

// A user's test of what happens when the network is bad.
func TestPrograms(t *testing.T) {
	c, server := connect(t, brokertest.Programs(func(p *brokertest.Program) {
		for i := range 5 {
			p.Stdout(strings.Repeat(string(rune('a'+i)), 300_000))
			p.Cut()
			p.AwaitClients(i + 2)
		}
		p.Exit(exited(0))
	}))
	var want strings.Builder
	for i := range 5 {
		want.WriteString(strings.Repeat(string(rune('a'+i)), 300_000))
	}
	handles := make(chan string, 1)
	res, err := run(t, c, sandboxclient.Code{Started: func(h string) { handles <- h }})
	require.NoError(t, err)
	assert.Equal(t, want.String(), string(res.Stdout))
	assert.True(t, res.Ending.Complete)
	assert.Equal(t, 6, server.Accepted())
	assert.Equal(t, "exec-1", <-handles)
}

func TestOutputThatWasDiscarded(t *testing.T) {
	retentions := make(chan wire.Retention, 1)
	c, _ := connect(t, brokertest.Each(func(s *brokertest.Stream) {
		retentions <- s.Request.Program.Retention
		s.Respond(accepted)
		s.Stdout("abc")
		s.Send(wire.Discarded{FD: wire.Stdout, To: 1 << 40}.Frame(0))
		for len(s.Windows()) == 0 { // beyond the first window there is no credit
			time.Sleep(time.Millisecond)
		}
		s.Send(wire.Frame{Kind: wire.KindStdout, Offset: 1 << 40, Payload: []byte("xyz")})
		s.Exit(wire.Ending{Reason: wire.ReasonExited, StdoutBytes: 1<<40 + 3, Complete: true})
	}))
	res, err := run(t, c, sandboxclient.Code{Retention: sandboxclient.RetainNewest})
	require.NoError(t, err)
	assert.Equal(t, wire.RetainNewest, <-retentions)
	assert.Equal(t, "abcxyz", string(res.Stdout))
	assert.EqualValues(t, 1<<40, res.Ending.StdoutDiscardedTo)
	assert.False(t, res.Ending.Complete)
}

func TestIDs(t *testing.T) {
	ids := make(chan string, 1)
	c, _ := connect(t, brokertest.Each(func(s *brokertest.Stream) {
		s.Respond(accepted)
		if s.Request.Op == wire.OpExec {
			ids <- s.Request.ID
			s.Exit(exited(0))
		}
	}))
	cmd := newLease(t, c).Command("x")
	cmd.ID = "mine"
	require.NoError(t, cmd.Run(testContext(t)))
	assert.Equal(t, "mine", <-ids)
	cmd = newLease(t, c).Command("x")
	cmd.ID = "not/mine"
	require.ErrorIs(t, cmd.Run(testContext(t)), sandboxclient.ErrInvalid)
}

package sandboxclient_test

import (
	"context"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/brokertest"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// leases grants every Acquire the lease "l1", takes every Release, and gives the
// programs to exec.
func leases(exec func(*brokertest.Stream)) brokertest.Script {
	return brokertest.Each(func(s *brokertest.Stream) {
		switch s.Request.Op {
		case wire.OpAcquire:
			s.Respond(wire.Response{Lease: "l1", ExpiresMS: 1_800_000_000_000, Isolation: "gvisor"})
		case wire.OpRelease:
			s.Respond(wire.Response{})
		default:
			exec(s)
		}
	})
}

func newLease(t *testing.T, c *sandboxclient.Client) *sandboxclient.Lease {
	t.Helper()
	lease, err := c.Acquire(testContext(t), "p")
	require.NoError(t, err)
	return lease
}

func TestAcquireAndRelease(t *testing.T) {
	requests := make(chan wire.Request, 10)
	c, _ := connect(t, brokertest.Each(func(s *brokertest.Stream) {
		requests <- s.Request
		s.Respond(wire.Response{Lease: "l1", ExpiresMS: 1_800_000_000_000, Isolation: "gvisor"})
	}))
	ctx := testContext(t)
	lease, err := c.Acquire(ctx, "p", sandboxclient.WithTTL(time.Minute))
	require.NoError(t, err)
	assert.Equal(t, wire.Request{Op: wire.OpAcquire, Pool: "p", TTLMS: 60_000}, <-requests)
	assert.Equal(t, "l1", lease.Handle())
	assert.Equal(t, "gvisor", lease.Isolation())
	assert.Equal(t, time.UnixMilli(1_800_000_000_000), lease.Expires())

	require.NoError(t, lease.Release(ctx))
	require.NoError(t, lease.Release(ctx))
	assert.Equal(t, wire.Request{Op: wire.OpRelease, Lease: "l1"}, <-requests)
	assert.Empty(t, requests, "the second release sends nothing")
}

func TestReleaseOfWhatIsOver(t *testing.T) {
	for code, ok := range map[wire.Code]bool{wire.CodeLeaseExpired: true, wire.CodeNotFound: false} {
		t.Run(string(code), func(t *testing.T) {
			c, _ := connect(t, brokertest.Each(func(s *brokertest.Stream) {
				if s.Request.Op == wire.OpAcquire {
					s.Respond(wire.Response{Lease: "l1"})
					return
				}
				s.Fail(wire.Errorf(code, "no such lease"))
			}))
			err := newLease(t, c).Release(testContext(t))
			if ok {
				assert.NoError(t, err)
			} else {
				assert.ErrorIs(t, err, sandboxclient.ErrNotFound)
			}
		})
	}
}

func TestReleaseIsRepeatedAfterALostConnection(t *testing.T) {
	var once sync.Once
	c, server := connect(t, brokertest.Each(func(s *brokertest.Stream) {
		if s.Request.Op == wire.OpRelease {
			cut := false
			once.Do(func() { cut = true })
			if cut {
				s.Conn.Cut()
				return
			}
		}
		s.Respond(wire.Response{Lease: "l1"})
	}))
	require.NoError(t, newLease(t, c).Release(testContext(t)))
	assert.Equal(t, 2, server.Accepted())
}

func TestAcquireFails(t *testing.T) {
	t.Run("refused", func(t *testing.T) {
		c, _ := connect(t, brokertest.Each(func(s *brokertest.Stream) {
			s.Fail(&wire.Error{Code: wire.CodeNotReady, Reason: "image_error", Message: "cannot pull"})
		}))
		_, err := c.Acquire(testContext(t), "p")
		var e *sandboxclient.Error
		require.ErrorAs(t, err, &e)
		assert.ErrorIs(t, err, sandboxclient.ErrNotReady)
		assert.Equal(t, "image_error", e.Reason)
	})
	t.Run("lost", func(t *testing.T) {
		c, _ := connect(t, brokertest.Each(func(s *brokertest.Stream) { s.Conn.Cut() }))
		_, err := c.Acquire(testContext(t), "p")
		assert.ErrorIs(t, err, sandboxclient.ErrStartUnknown)
	})
}

func TestAcquireCanceled(t *testing.T) {
	tests := map[string]struct {
		answer  func(*brokertest.Stream) // to the Cancel
		release bool
	}{
		"in the queue": {func(s *brokertest.Stream) { s.Fail(wire.Errorf(wire.CodeExhausted, "given up")) }, false},
		"when granted": {func(s *brokertest.Stream) { s.Respond(wire.Response{Lease: "late"}) }, true},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			waiting := make(chan struct{})
			answered := make(chan struct{})
			released := make(chan string, 1)
			c, _ := connect(t, brokertest.Each(func(s *brokertest.Stream) {
				if s.Request.Op == wire.OpRelease {
					released <- s.Request.Lease
					s.Respond(wire.Response{})
					return
				}
				close(waiting)
				if _, ok := s.Await(wire.KindCancel); ok {
					<-answered // the caller has gone long before
					tt.answer(s)
				}
			}))
			ctx, cancel := context.WithCancel(testContext(t))
			go func() {
				<-waiting
				cancel()
			}()
			_, err := c.Acquire(ctx, "p")
			require.ErrorIs(t, err, context.Canceled)
			close(answered)
			require.NoError(t, c.Close(), "Close waits for leases that are given back")
			if tt.release {
				assert.Equal(t, "late", <-released)
			} else {
				assert.Empty(t, released)
			}
		})
	}
}

func TestCommand(t *testing.T) {
	programs := make(chan *brokertest.Stream, 1)
	c, _ := connect(t, leases(func(s *brokertest.Stream) {
		programs <- s
		s.Respond(accepted)
		s.Stdout(s.ReadStdin(100))
		s.Stderr("warning")
		s.Exit(exited(0))
	}))
	var stdout, stderr strings.Builder
	cmd := newLease(t, c).Command("cat", "-n")
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader("text"), &stdout, &stderr
	cmd.Env, cmd.Dir, cmd.Timeout = map[string]string{"A": "b"}, "sub", time.Second
	_, ok := cmd.Ending()
	assert.False(t, ok)
	require.NoError(t, cmd.Run(testContext(t)))
	assert.Equal(t, "text", stdout.String())
	assert.Equal(t, "warning", stderr.String())
	ending, ok := cmd.Ending()
	assert.True(t, ok)
	assert.Equal(t, exited(0), ending)

	s := <-programs
	assert.Equal(t, wire.OpExec, s.Request.Op)
	assert.Equal(t, "l1", s.Request.Lease)
	assert.Equal(t, &wire.Program{
		Argv: []string{"cat", "-n"}, Env: map[string]string{"A": "b"}, Dir: "sub", TimeoutMS: 1000, Stdin: true,
	}, s.Request.Program)
}

func TestScriptWithNothingConnected(t *testing.T) {
	programs := make(chan *brokertest.Stream, 1)
	c, _ := connect(t, leases(func(s *brokertest.Stream) {
		programs <- s
		s.Respond(accepted)
		s.Stdout(strings.Repeat("x", 3*wire.DefaultWindow))
		s.Exit(exited(7))
	}))
	err := newLease(t, c).Script("node", "1+1", "arg").Run(testContext(t))
	var exit *sandboxclient.ExitError
	require.ErrorAs(t, err, &exit)
	assert.Equal(t, 7, exit.ExitCode())
	s := <-programs
	assert.Equal(t, "1+1", s.Code)
	assert.Equal(t, &wire.Program{Language: "node", Argv: []string{"arg"}}, s.Request.Program)
}

func TestCommandMisuse(t *testing.T) {
	c, _ := connect(t, leases(func(s *brokertest.Stream) {
		s.Respond(accepted)
		s.Exit(exited(0))
	}))
	ctx := testContext(t)
	lease := newLease(t, c)
	cmd := lease.Command("true")
	assert.Error(t, cmd.Wait(), "not started")
	assert.Error(t, cmd.Signal("SIGTERM"), "not started")
	require.NoError(t, cmd.Run(ctx))
	require.NoError(t, cmd.Wait(), "the result stays")
	assert.Error(t, cmd.Start(ctx), "started before")
	require.NoError(t, cmd.Signal("SIGTERM"), "a program that has ended gets no signal")

	cmd = lease.Command("true")
	cmd.Stdout = io.Discard
	_, err := cmd.Output(ctx)
	assert.Error(t, err)
	_, err = cmd.CombinedOutput(ctx)
	assert.Error(t, err)
}

func TestCommandStartFails(t *testing.T) {
	c, _ := connect(t, leases(func(s *brokertest.Stream) {
		s.Fail(wire.Errorf(wire.CodeLeaseExpired, "the lease is over"))
	}))
	cmd := newLease(t, c).Command("true")
	assert.ErrorIs(t, cmd.Start(testContext(t)), sandboxclient.ErrLeaseExpired)
	assert.Error(t, cmd.Wait())
}

func TestCommandOutput(t *testing.T) {
	c, _ := connect(t, leases(func(s *brokertest.Stream) {
		s.Respond(accepted)
		if s.Code == "much" {
			s.Stdout(strings.Repeat("x", sandboxclient.DefaultMaxOutput+1))
		}
		s.Stdout("1 ")
		s.Stderr("2 ")
		s.Stdout("3 ")
		s.Exit(exited(0))
	}))
	ctx := testContext(t)
	lease := newLease(t, c)
	out, err := lease.Script("python", "few").Output(ctx)
	require.NoError(t, err)
	assert.Equal(t, "1 3 ", string(out))
	out, err = lease.Script("python", "few").CombinedOutput(ctx)
	require.NoError(t, err)
	assert.Equal(t, "1 2 3 ", string(out))
	out, err = lease.Script("python", "much").Output(ctx)
	require.ErrorIs(t, err, sandboxclient.ErrOutputTruncated)
	assert.Len(t, out, sandboxclient.DefaultMaxOutput)
}

func TestCommandSignal(t *testing.T) {
	c, _ := connect(t, leases(func(s *brokertest.Stream) {
		s.Respond(accepted)
		f, _ := s.Await(wire.KindSignal)
		s.Exit(wire.Ending{Reason: wire.ReasonSignaled, Signal: string(f.Payload)})
	}))
	cmd := newLease(t, c).Command("sleep", "60")
	require.NoError(t, cmd.Start(testContext(t)))
	require.NoError(t, cmd.Signal("SIGTERM"))
	var exit *sandboxclient.ExitError
	require.ErrorAs(t, cmd.Wait(), &exit)
	assert.Equal(t, `{"name":"SIGTERM"}`, exit.Ending.Signal)
}

// A program ends by itself while nobody waits: the broker hears so at once.
func TestCommandIsConfirmedWithoutWait(t *testing.T) {
	confirmed := make(chan struct{})
	c, _ := connect(t, leases(func(s *brokertest.Stream) {
		s.Respond(accepted)
		s.Exit(exited(0))
		if _, ok := s.Await(wire.KindDone); ok {
			close(confirmed)
		}
	}))
	cmd := newLease(t, c).Command("true")
	require.NoError(t, cmd.Start(testContext(t)))
	<-confirmed
	require.NoError(t, cmd.Wait())
}

func TestCommandWriterBlocksAndContextEnds(t *testing.T) {
	c, _ := connect(t, leases(func(s *brokertest.Stream) {
		s.Respond(accepted)
		s.Stdout("x")
		if _, ok := s.Await(wire.KindCancel); ok {
			s.Exit(wire.Ending{Reason: wire.ReasonCanceled})
		}
	}))
	c.SetCancelWait(50 * time.Millisecond)
	ctx, cancel := context.WithCancel(testContext(t))
	w := newBlockedWriter()
	cmd := newLease(t, c).Command("yes")
	cmd.Stdout = w
	require.NoError(t, cmd.Start(ctx))
	<-w.entered
	cancel()
	err := cmd.Wait()
	assert.ErrorIs(t, err, context.Canceled, "a writer that blocks must not hold up a canceled call for ever")
	close(w.opened)
}

func TestCancelUnanswered(t *testing.T) {
	c, server := connect(t, leases(func(s *brokertest.Stream) {
		s.Respond(accepted)
		if s.Code == "stuck" {
			s.Await(wire.KindDone) // never comes: there is no ending
			return
		}
		s.Exit(exited(0))
	}))
	c.SetCancelWait(50 * time.Millisecond)
	ctx, cancel := context.WithCancel(testContext(t))
	lease := newLease(t, c)
	cmd := lease.Script("python", "stuck")
	require.NoError(t, cmd.Start(ctx))
	cancel()
	err := cmd.Wait()
	assert.ErrorIs(t, err, context.Canceled)
	assert.False(t, errors.As(err, new(*sandboxclient.ExitError)))
	require.NoError(t, lease.Script("python", "fine").Run(testContext(t)))
	assert.Equal(t, 2, server.Accepted(), "a connection whose broker seems stuck gets no new streams")
}

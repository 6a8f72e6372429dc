package sandboxclient_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/brokertest"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

var accepted = wire.Response{Lease: "l1", Exec: "e1", Isolation: "gvisor", RequestID: "r1"}

// run calls Run with code in the pool "p" and a bound.
func run(t *testing.T, c *sandboxclient.Client, code sandboxclient.Code) (*sandboxclient.Result, error) {
	t.Helper()
	if code.Pool == "" {
		code.Pool = "p"
	}
	return c.Run(testContext(t), code)
}

func TestRunBuffered(t *testing.T) {
	requests := make(chan *brokertest.Stream, 1)
	c, _ := connect(t, brokertest.Each(func(s *brokertest.Stream) {
		s.Respond(accepted)
		s.Stdout("out")
		s.Stderr("err")
		s.Stdout("put")
		s.Exit(exited(0))
		if _, ok := s.Await(wire.KindDone); ok {
			requests <- s
		}
	}))
	res, err := run(t, c, sandboxclient.Code{
		Language: "python", Source: "print(1)", Args: []string{"-x"},
		Env: map[string]string{"A": "b"}, Dir: "sub", Timeout: 1500 * time.Microsecond,
	})
	require.NoError(t, err)
	assert.Equal(t, "output", string(res.Stdout))
	assert.Equal(t, "err", string(res.Stderr))
	assert.False(t, res.Truncated)
	assert.Equal(t, sandboxclient.ReasonExited, res.Ending.Reason)
	assert.Equal(t, []string{"l1", "e1", "gvisor", "r1"}, []string{res.Lease, res.Exec, res.Isolation, res.RequestID})
	assert.Positive(t, res.Timings.Response)
	assert.GreaterOrEqual(t, res.Timings.FirstByte, res.Timings.Response)
	assert.GreaterOrEqual(t, res.Timings.Exit, res.Timings.FirstByte)

	s := <-requests
	assert.Equal(t, uint32(1), s.ID)
	assert.Equal(t, "print(1)", s.Code)
	assert.Equal(t, wire.OpRun, s.Request.Op)
	assert.Equal(t, "p", s.Request.Pool)
	assert.Equal(t, &wire.Program{
		Language: "python", Argv: []string{"-x"}, Env: map[string]string{"A": "b"}, Dir: "sub", TimeoutMS: 2,
	}, s.Request.Program)
}

func TestRunArgv(t *testing.T) {
	programs := make(chan *wire.Program, 1)
	c, _ := connect(t, brokertest.Each(func(s *brokertest.Stream) {
		programs <- s.Request.Program
		s.Respond(accepted)
		s.Exit(exited(0))
	}))
	_, err := run(t, c, sandboxclient.Code{Argv: []string{"ls", "-l"}})
	require.NoError(t, err)
	assert.Equal(t, &wire.Program{Argv: []string{"ls", "-l"}}, <-programs)

	_, err = run(t, c, sandboxclient.Code{Argv: []string{"ls"}, Language: "python"})
	assert.ErrorIs(t, err, sandboxclient.ErrInvalid)
}

func TestRunSeesOutputAsItAppears(t *testing.T) {
	next := make(chan struct{})
	c, _ := connect(t, brokertest.Each(func(s *brokertest.Stream) {
		s.Respond(accepted)
		for _, line := range []string{"one\n", "two\n", "three\n"} {
			s.Stdout(line)
			<-next // the next line is sent only when this one was seen
		}
		s.Exit(exited(0))
	}))
	seen := make(lines)
	done := make(chan error, 1)
	go func() {
		_, err := c.Run(testContext(t), sandboxclient.Code{Stdout: seen})
		done <- err
	}()
	for _, want := range []string{"one\n", "two\n", "three\n"} {
		assert.Equal(t, want, seen.next(t))
		next <- struct{}{}
	}
	require.NoError(t, <-done)
}

func TestRunEndings(t *testing.T) {
	tests := map[string]struct {
		ending wire.Ending
		code   int
		text   string
	}{
		"exit 3":       {exited(3), 3, "exit status 3"},
		"exit 255":     {exited(255), 255, "exit status 255"},
		"signal":       {wire.Ending{Reason: wire.ReasonSignaled, Signal: "SIGKILL"}, -1, "ended by signal SIGKILL"},
		"timeout":      {wire.Ending{Reason: wire.ReasonTimeout, Message: "2s"}, -1, "ended by its timeout: 2s"},
		"oom":          {wire.Ending{Reason: wire.ReasonOOM}, -1, "out of memory"},
		"output limit": {wire.Ending{Reason: wire.ReasonOutputLimit}, -1, "ended for writing more output than allowed"},
		"canceled":     {wire.Ending{Reason: wire.ReasonCanceled}, -1, "canceled"},
		"lost":         {wire.Ending{Reason: wire.ReasonLost, Cause: wire.CauseEvicted}, -1, "lost with its sandbox (evicted)"},
		"new reason":   {wire.Ending{Reason: "retired"}, -1, "ended: retired"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			c, _ := connect(t, brokertest.Each(func(s *brokertest.Stream) {
				s.Respond(accepted)
				s.Stdout("before")
				s.Exit(tt.ending)
			}))
			res, err := run(t, c, sandboxclient.Code{})
			var exit *sandboxclient.ExitError
			require.ErrorAs(t, err, &exit)
			assert.Equal(t, tt.ending, exit.Ending)
			assert.Equal(t, tt.code, exit.ExitCode())
			assert.Equal(t, tt.text, exit.Error())
			require.NotNil(t, res)
			assert.Equal(t, "before", string(res.Stdout))
			assert.Equal(t, tt.ending, res.Ending)
		})
	}
}

func TestRunRefused(t *testing.T) {
	refusal := &wire.Error{
		Code: wire.CodeInvalid, Message: "code is too large", Field: "code", Limit: 1 << 20,
		RequestID: "r7", RetryAfterMS: 1500,
	}
	for name, after := range map[string]bool{"before the response": false, "after the response": true} {
		t.Run(name, func(t *testing.T) {
			c, _ := connect(t, brokertest.Each(func(s *brokertest.Stream) {
				if after {
					s.Respond(accepted)
				}
				s.Fail(refusal)
			}))
			res, err := run(t, c, sandboxclient.Code{})
			assert.ErrorIs(t, err, sandboxclient.ErrInvalid)
			assert.NotErrorIs(t, err, sandboxclient.ErrExhausted)
			var e *sandboxclient.Error
			require.ErrorAs(t, err, &e)
			assert.Equal(t, refusal, e)
			assert.Equal(t, 1500*time.Millisecond, e.RetryAfter())
			assert.Equal(t, after, res != nil)
		})
	}
}

func TestRunRefusesWhatTheProtocolCannotCarry(t *testing.T) {
	c, server := connect(t, brokertest.Each(func(*brokertest.Stream) {}))
	_, err := run(t, c, sandboxclient.Code{Language: "python", Source: strings.Repeat("#", wire.MaxCode+1)})
	var e *sandboxclient.Error
	require.ErrorAs(t, err, &e)
	assert.Equal(t, "code", e.Field)
	assert.EqualValues(t, wire.MaxCode, e.Limit)

	_, err = run(t, c, sandboxclient.Code{Argv: []string{strings.Repeat("a", wire.MaxControl)}})
	require.ErrorAs(t, err, &e)
	assert.Equal(t, "request", e.Field)
	assert.Zero(t, server.Accepted())
}

func TestRunKeepsAtMostMaxOutput(t *testing.T) {
	c, _ := connect(t, brokertest.Each(func(s *brokertest.Stream) {
		s.Respond(accepted)
		s.Stdout(strings.Repeat("x", 1<<20))
		s.Stderr("few")
		s.Exit(exited(0))
	}))
	res, err := run(t, c, sandboxclient.Code{MaxOutput: 1000})
	require.NoError(t, err)
	assert.Equal(t, strings.Repeat("x", 1000), string(res.Stdout))
	assert.Equal(t, "few", string(res.Stderr))
	assert.True(t, res.Truncated)
}

func TestRunManyBytesWithinCredit(t *testing.T) {
	content := bytes.Repeat([]byte("0123456789abcdef"), 1<<20/16*8)
	c, _ := connect(t, brokertest.Each(func(s *brokertest.Stream) {
		s.Respond(accepted)
		s.Stdout(string(content))
		s.Exit(exited(0))
	}))
	hash := sha256.New()
	_, err := run(t, c, sandboxclient.Code{Stdout: hash})
	require.NoError(t, err)
	want := sha256.Sum256(content)
	assert.Equal(t, want[:], hash.Sum(nil))
}

// countingWriter notices when two writes overlap.
type countingWriter struct {
	inside  atomic.Int32
	overlap atomic.Bool
	buf     bytes.Buffer
}

func (w *countingWriter) Write(p []byte) (int, error) {
	if w.inside.Add(1) > 1 {
		w.overlap.Store(true)
	}
	defer w.inside.Add(-1)
	return w.buf.Write(p)
}

func TestRunEqualWritersKeepTheOrderAndDoNotOverlap(t *testing.T) {
	var want strings.Builder
	c, _ := connect(t, brokertest.Each(func(s *brokertest.Stream) {
		s.Respond(accepted)
		for range 200 {
			s.Stdout("out ")
			s.Stderr("err ")
		}
		s.Exit(exited(0))
	}))
	for range 200 {
		want.WriteString("out err ")
	}
	w := new(countingWriter)
	_, err := run(t, c, sandboxclient.Code{Stdout: w, Stderr: w})
	require.NoError(t, err)
	assert.Equal(t, want.String(), w.buf.String())
	assert.False(t, w.overlap.Load())
}

func TestRunWriterFails(t *testing.T) {
	canceled := make(chan bool, 1)
	c, _ := connect(t, brokertest.Each(func(s *brokertest.Stream) {
		s.Respond(accepted)
		s.Stdout("x")
		_, ok := s.Await(wire.KindCancel)
		canceled <- ok
		s.Exit(wire.Ending{Reason: wire.ReasonCanceled})
	}))
	r, w := io.Pipe()
	r.CloseWithError(errors.New("no more room"))
	_, err := run(t, c, sandboxclient.Code{Stdout: w})
	require.ErrorContains(t, err, "writing the program's stdout: no more room")
	assert.True(t, <-canceled)
}

func TestRunCanceledContext(t *testing.T) {
	c, _ := connect(t, brokertest.Each(func(s *brokertest.Stream) {
		s.Respond(accepted)
		s.Stdout("before")
		if _, ok := s.Await(wire.KindCancel); ok {
			s.Stdout(", after")
			s.Exit(wire.Ending{Reason: wire.ReasonCanceled})
		}
	}))
	ctx, cancel := context.WithCancel(testContext(t))
	seen := make(lines, 2)
	done := make(chan error, 1)
	var res *sandboxclient.Result
	go func() {
		var err error
		res, err = c.Run(ctx, sandboxclient.Code{Stdout: seen})
		done <- err
	}()
	assert.Equal(t, "before", seen.next(t))
	cancel()
	err := <-done
	assert.ErrorIs(t, err, context.Canceled)
	var exit *sandboxclient.ExitError
	require.ErrorAs(t, err, &exit)
	assert.Equal(t, sandboxclient.ReasonCanceled, exit.Ending.Reason)
	assert.Equal(t, ", after", seen.next(t))
	assert.Equal(t, sandboxclient.ReasonCanceled, res.Ending.Reason)

	_, err = c.Run(ctx, sandboxclient.Code{})
	assert.ErrorIs(t, err, context.Canceled)
}

func TestRunCanceledInTheQueue(t *testing.T) {
	waiting := make(chan struct{})
	c, _ := connect(t, brokertest.Each(func(s *brokertest.Stream) {
		close(waiting)
		if _, ok := s.Await(wire.KindCancel); ok {
			s.Fail(wire.Errorf(wire.CodeExhausted, "given up"))
		}
	}))
	ctx, cancel := context.WithCancel(testContext(t))
	go func() {
		<-waiting
		cancel()
	}()
	res, err := c.Run(ctx, sandboxclient.Code{})
	assert.ErrorIs(t, err, context.Canceled)
	assert.Nil(t, res)
}

func TestRunDeadline(t *testing.T) {
	c, _ := connect(t, brokertest.Each(func(s *brokertest.Stream) {
		s.Respond(accepted)
		if _, ok := s.Await(wire.KindCancel); ok {
			s.Exit(wire.Ending{Reason: wire.ReasonCanceled})
		}
	}))
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Millisecond)
	defer cancel()
	_, err := c.Run(ctx, sandboxclient.Code{})
	assert.ErrorIs(t, err, context.DeadlineExceeded)
}

package main

import (
	"context"
	"errors"
	"io"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient/brokertest"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

func TestAcquireAndRelease(t *testing.T) {
	requests := make(chan wire.Request, 2)
	scriptBroker(t, func(s *brokertest.Stream) {
		requests <- s.Request
		s.Respond(wire.Response{Lease: "bGVhc2U.bWFj"})
	})
	assert.Equal(t, result{0, "bGVhc2U.bWFj\n", ""}, call(t, nil, "acquire", "--pool", "p", "--ttl", "90s"))
	assert.Equal(t, wire.Request{Op: wire.OpAcquire, Pool: "p", TTLMS: 90_000}, <-requests)
	assert.Equal(t, result{}, call(t, nil, "release", "bGVhc2U.bWFj"))
	assert.Equal(t, wire.Request{Op: wire.OpRelease, Lease: "bGVhc2U.bWFj"}, <-requests)
}

// A handle that nobody has read names a lease that nobody will release.
func TestAcquireGivesBackWhatItCannotTell(t *testing.T) {
	released := make(chan string, 1)
	scriptBroker(t, func(s *brokertest.Stream) {
		if s.Request.Op == wire.OpRelease {
			released <- s.Request.Lease
		}
		s.Respond(wire.Response{Lease: "l1"})
	})
	var text strings.Builder
	code := run(context.Background(), []string{"acquire"}, streams{out: brokenWriter{}, err: &text})
	assert.Equal(t, 125, code)
	assert.Equal(t, "sandbox-broker: printing the handle: nobody reads\n", text.String())
	assert.Equal(t, "l1", <-released)
}

type brokenWriter struct{}

func (brokenWriter) Write([]byte) (int, error) { return 0, errors.New("nobody reads") }

func TestLeaseFailures(t *testing.T) {
	fail := func(e *wire.Error) func(*brokertest.Stream) { return func(s *brokertest.Stream) { s.Fail(e) } }
	for name, tt := range map[string]struct {
		args   []string
		handle func(*brokertest.Stream)
		text   string // empty: it worked
	}{
		"acquire, full":        {[]string{"acquire"}, fail(wire.Errorf(wire.CodeExhausted, "full")), "full; try again later"},
		"acquire, lost":        {[]string{"acquire"}, func(s *brokertest.Stream) { s.Conn.Cut() }, "a lease that was granted ends with its time"},
		"release, unknown":     {[]string{"release", "l1"}, fail(wire.Errorf(wire.CodeNotFound, "no such lease")), "no such lease"},
		"release, lost":        {[]string{"release", "l1"}, func(s *brokertest.Stream) { s.Conn.Cut() }, "releasing again does no harm"},
		"release, over":        {[]string{"release", "l1"}, fail(wire.Errorf(wire.CodeLeaseExpired, "over")), ""},
		"exec, over":           {[]string{"exec", "l1", "ls"}, fail(wire.Errorf(wire.CodeLeaseExpired, "the lease is over")), "the lease is over"},
		"exec, another tenant": {[]string{"exec", "l1", "ls"}, fail(wire.Errorf(wire.CodeNotFound, "no such lease or exec")), "no such lease"},
	} {
		t.Run(name, func(t *testing.T) {
			scriptBroker(t, tt.handle)
			got := call(t, nil, tt.args...)
			if tt.text == "" {
				assert.Equal(t, result{}, got)
				return
			}
			assert.Equal(t, 125, got.code)
			assert.Contains(t, got.err, tt.text)
			assert.Equal(t, 1, strings.Count(got.err, "\n"), "one line: %q", got.err)
		})
	}
	t.Run("interrupted", func(t *testing.T) {
		scriptBroker(t, func(s *brokertest.Stream) { s.Await(wire.KindCancel) })
		ctx, cancel := context.WithTimeout(context.Background(), 50*time.Millisecond)
		defer cancel()
		assert.Equal(t, result{130, "", ""}, callContext(ctx, nil, "acquire"))
	})
}

func TestExecRequests(t *testing.T) {
	for name, tt := range map[string]struct {
		in      io.Reader
		args    []string
		code    string
		program wire.Program
	}{
		"program":         {nil, []string{"l1", "ls"}, "", wire.Program{Argv: []string{"ls"}}},
		"arguments":       {nil, []string{"l1", "ls", "-l", "--", "x"}, "", wire.Program{Argv: []string{"ls", "-l", "--", "x"}}},
		"after --":        {nil, []string{"l1", "--", "ls", "-l"}, "", wire.Program{Argv: []string{"ls", "-l"}}},
		"lease after --":  {nil, []string{"--", "l1", "ls"}, "", wire.Program{Argv: []string{"ls"}}},
		"timeout":         {nil, []string{"--timeout", "2s", "l1", "ls"}, "", wire.Program{Argv: []string{"ls"}, TimeoutMS: 2000}},
		"environment":     {nil, []string{"--env", "A=b", "l1", "ls"}, "", wire.Program{Argv: []string{"ls"}, Env: map[string]string{"A": "b"}}},
		"input":           {strings.NewReader("in"), []string{"l1", "cat"}, "", wire.Program{Argv: []string{"cat"}, Stdin: true}},
		"code":            {nil, []string{"-e", "1+1", "l1"}, "1+1", wire.Program{Language: "python"}},
		"code, arguments": {nil, []string{"-l", "node", "-e", "1+1", "l1", "--", "-v"}, "1+1", wire.Program{Language: "node", Argv: []string{"-v"}}},
	} {
		t.Run(name, func(t *testing.T) {
			streams := make(chan *brokertest.Stream, 1)
			scriptBroker(t, func(s *brokertest.Stream) {
				streams <- s
				s.Respond(wire.Response{})
				s.Exit(wire.Ending{Reason: wire.ReasonExited})
			})
			require.Equal(t, result{}, call(t, tt.in, append([]string{"exec"}, tt.args...)...))
			s := <-streams
			assert.Equal(t, wire.OpExec, s.Request.Op)
			assert.Equal(t, "l1", s.Request.Lease)
			assert.Equal(t, tt.program, *s.Request.Program)
			assert.Equal(t, tt.code, s.Code)
		})
	}
}

func TestExecPassesStreamsAndExitCode(t *testing.T) {
	scriptBroker(t, func(s *brokertest.Stream) {
		s.Respond(wire.Response{})
		s.Stdout(s.ReadStdin(1000))
		s.Stderr("warning\n")
		s.Exit(wire.Ending{Reason: wire.ReasonExited, ExitCode: 3})
	})
	assert.Equal(t, result{3, "input", "warning\n"}, call(t, strings.NewReader("input"), "exec", "l1", "cat"))
}

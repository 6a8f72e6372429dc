package main

import (
	"context"
	"io"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/brokertest"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

func TestRunRequests(t *testing.T) {
	dir := t.TempDir()
	write := func(name, code string) string {
		path := filepath.Join(dir, name)
		require.NoError(t, os.WriteFile(path, []byte(code), 0o600))
		return path
	}
	py, sh, mjs, txt := write("a.py", "py"), write("a.sh", "sh"), write("a.MJS", "mjs"), write("a.txt", "txt")
	terminal, err := os.Open(os.DevNull) // a character device, as a terminal is
	require.NoError(t, err)
	defer terminal.Close()
	type want struct {
		code    string
		program wire.Program
		pool    string
	}
	for name, tt := range map[string]struct {
		in   io.Reader
		args []string
		want want
	}{
		"python file": {nil, []string{py}, want{"py", wire.Program{Language: "python"}, ""}},
		"shell file":  {nil, []string{sh}, want{"sh", wire.Program{Language: "shell"}, ""}},
		"node file":   {nil, []string{mjs}, want{"mjs", wire.Program{Language: "node"}, ""}},
		"other file":  {nil, []string{txt}, want{"txt", wire.Program{Language: "python"}, ""}},
		"language":    {nil, []string{"-l", "node", py}, want{"py", wire.Program{Language: "node"}, ""}},
		"pool":        {nil, []string{"--pool", "p", py}, want{"py", wire.Program{Language: "python"}, "p"}},
		"arguments": {nil, []string{py, "--pool", "x", "-v"},
			want{"py", wire.Program{Language: "python", Argv: []string{"--pool", "x", "-v"}}, ""}},
		"arguments after --": {nil, []string{py, "--", "-v"}, want{"py", wire.Program{Language: "python", Argv: []string{"-v"}}, ""}},
		"file after --":      {nil, []string{"--", py, "-v"}, want{"py", wire.Program{Language: "python", Argv: []string{"-v"}}, ""}},
		"inline":             {nil, []string{"-e", "1+1"}, want{"1+1", wire.Program{Language: "python"}, ""}},
		"inline, arguments":  {nil, []string{"-e", "1+1", "--", "-v", "w"}, want{"1+1", wire.Program{Language: "python", Argv: []string{"-v", "w"}}, ""}},
		"empty inline":       {nil, []string{"-e", ""}, want{"", wire.Program{Language: "python"}, ""}},
		"stdin":              {strings.NewReader("from stdin"), []string{"-"}, want{"from stdin", wire.Program{Language: "python"}, ""}},
		"timeout":            {nil, []string{"--timeout", "2s", py}, want{"py", wire.Program{Language: "python", TimeoutMS: 2000}, ""}},
		"environment": {nil, []string{"--env", "A=b=c", "--env", "E=", py},
			want{"py", wire.Program{Language: "python", Env: map[string]string{"A": "b=c", "E": ""}}, ""}},
		"input":    {strings.NewReader("input"), []string{py}, want{"py", wire.Program{Language: "python", Stdin: true}, ""}},
		"terminal": {terminal, []string{py}, want{"py", wire.Program{Language: "python"}, ""}},
	} {
		t.Run(name, func(t *testing.T) {
			streams := make(chan *brokertest.Stream, 1)
			scriptBroker(t, func(s *brokertest.Stream) {
				streams <- s
				s.Respond(wire.Response{})
				s.Exit(wire.Ending{Reason: wire.ReasonExited})
			})
			got := call(t, tt.in, append([]string{"run"}, tt.args...)...)
			require.Equal(t, result{}, got)
			s := <-streams
			assert.Equal(t, tt.want, want{s.Code, *s.Request.Program, s.Request.Pool})
			assert.Equal(t, wire.OpRun, s.Request.Op)
		})
	}
}

func TestRunExitCodes(t *testing.T) {
	for name, tt := range map[string]struct {
		ending wire.Ending
		code   int
		text   string // on stderr; empty: nothing
	}{
		"0":              {wire.Ending{Reason: wire.ReasonExited}, 0, ""},
		"1":              {wire.Ending{Reason: wire.ReasonExited, ExitCode: 1}, 1, ""},
		"255":            {wire.Ending{Reason: wire.ReasonExited, ExitCode: 255}, 255, ""},
		"killed":         {wire.Ending{Reason: wire.ReasonSignaled, Signal: "SIGKILL"}, 137, "ended by signal SIGKILL"},
		"segfault":       {wire.Ending{Reason: wire.ReasonSignaled, Signal: "SIGSEGV"}, 139, "ended by signal SIGSEGV"},
		"unknown signal": {wire.Ending{Reason: wire.ReasonSignaled, Signal: "SIGNEW"}, 125, "ended by signal SIGNEW"},
		"timeout":        {wire.Ending{Reason: wire.ReasonTimeout, Message: "2s"}, 124, "the program was ended by its timeout: 2s"},
		"oom":            {wire.Ending{Reason: wire.ReasonOOM}, 137, "the program ran out of memory"},
		"output limit":   {wire.Ending{Reason: wire.ReasonOutputLimit}, 137, "more output than allowed"},
		"lost":           {wire.Ending{Reason: wire.ReasonLost, Cause: wire.CauseNodeLost}, 125, "lost with its sandbox (node_lost); run it again"},
		"new reason":     {wire.Ending{Reason: "retired"}, 125, "ended: retired"},
	} {
		t.Run(name, func(t *testing.T) {
			scriptBroker(t, func(s *brokertest.Stream) {
				s.Respond(wire.Response{})
				s.Stdout("out\n")
				s.Exit(tt.ending)
			})
			got := call(t, nil, "run", "-e", "x")
			assert.Equal(t, tt.code, got.code)
			assert.Equal(t, "out\n", got.out)
			if tt.text == "" {
				assert.Empty(t, got.err)
				return
			}
			assert.Contains(t, got.err, tt.text)
			assert.Equal(t, 1, strings.Count(got.err, "\n"), "one line: %q", got.err)
		})
	}
}

func TestRunFailures(t *testing.T) {
	fail := func(e *wire.Error) func(*brokertest.Stream) {
		return func(s *brokertest.Stream) { s.Fail(e) }
	}
	for name, tt := range map[string]struct {
		handle func(*brokertest.Stream)
		texts  []string
	}{
		"invalid": {fail(&wire.Error{Code: wire.CodeInvalid, Field: "code", Message: "too large\n\x1b[2J", RequestID: "r1"}),
			[]string{"invalid (code): too large  [2J [request r1]\n"}},
		"unauthenticated": {fail(wire.Errorf(wire.CodeUnauthenticated, "expired")), []string{"expired", "--token-file or SANDBOX_BROKER_TOKEN_FILE"}},
		"exhausted":       {fail(&wire.Error{Code: wire.CodeExhausted, Message: "full", RetryAfterMS: 1500}), []string{"full", "try again in 1.5s"}},
		"unavailable":     {fail(wire.Errorf(wire.CodeUnavailable, "stopping")), []string{"stopping", "try again later"}},
		"lost early":      {func(s *brokertest.Stream) { s.Conn.Cut() }, []string{"before the broker answered", "not started again"}},
		"lost late": {func(s *brokertest.Stream) {
			s.Respond(wire.Response{})
			s.Conn.Cut()
		}, []string{"lost under a running program", "may go on for a while"}},
	} {
		t.Run(name, func(t *testing.T) {
			scriptBroker(t, tt.handle)
			got := call(t, nil, "run", "-e", "x")
			assert.Equal(t, 125, got.code)
			for _, text := range tt.texts {
				assert.Contains(t, got.err, text)
			}
			assert.Equal(t, 1, strings.Count(got.err, "\n"), "one line: %q", got.err)
		})
	}
	t.Run("nobody there", func(t *testing.T) {
		server := httptest.NewServer(nil)
		server.Close()
		got := call(t, nil, "run", "--server", server.URL, "-e", "x")
		assert.Equal(t, 125, got.code)
		assert.Contains(t, got.err, "is the broker running there?")
	})
	t.Run("unknown authority", func(t *testing.T) {
		server := brokertest.NewTLS(t, brokertest.Each(func(*brokertest.Stream) {}))
		got := call(t, nil, "run", "--server", server.URL, "-e", "x")
		assert.Equal(t, 125, got.code)
		assert.Contains(t, got.err, "--ca-file or SANDBOX_BROKER_CA_FILE")
	})
}

func TestRunPassesStreams(t *testing.T) {
	scriptBroker(t, func(s *brokertest.Stream) {
		s.Respond(wire.Response{})
		in := s.ReadStdin(1000)
		s.Stdout(in)
		s.Stderr("warning\n")
		s.Exit(wire.Ending{Reason: wire.ReasonExited, ExitCode: 3})
	})
	got := call(t, strings.NewReader("input"), "run", "-e", "x")
	assert.Equal(t, result{3, "input", "warning\n"}, got)
}

func TestRunShowsTheToken(t *testing.T) {
	shown := make(chan string, 2)
	server := brokertest.New(t, func(c *brokertest.Conn) {
		shown <- c.Header.Get("Authorization")
		c.Hello()
		c.Serve(func(s *brokertest.Stream) {
			s.Respond(wire.Response{})
			s.Exit(wire.Ending{Reason: wire.ReasonExited})
		})
	})
	dir := t.TempDir()
	fromEnv, fromFlag := filepath.Join(dir, "env"), filepath.Join(dir, "flag")
	require.NoError(t, os.WriteFile(fromEnv, []byte("e\n"), 0o600))
	require.NoError(t, os.WriteFile(fromFlag, []byte("f\n"), 0o600))
	t.Setenv(sandboxclient.EnvURL, "http://127.0.0.1:1") // the flag counts
	t.Setenv(sandboxclient.EnvTokenFile, fromEnv)
	t.Setenv(sandboxclient.EnvCAFile, "")
	require.Equal(t, 0, call(t, nil, "run", "--server", server.URL, "-e", "x").code)
	assert.Equal(t, "Bearer e", <-shown)
	require.Equal(t, 0, call(t, nil, "run", "--server", server.URL, "--token-file", fromFlag, "-e", "x").code)
	assert.Equal(t, "Bearer f", <-shown)
}

func TestRunInterrupted(t *testing.T) {
	t.Run("while the program runs", func(t *testing.T) {
		ctx, cancel := context.WithCancel(context.Background())
		canceled := make(chan bool, 1)
		scriptBroker(t, func(s *brokertest.Stream) {
			s.Respond(wire.Response{})
			s.Stdout("before\n")
			cancel()
			_, ok := s.Await(wire.KindCancel)
			canceled <- ok
			s.Exit(wire.Ending{Reason: wire.ReasonCanceled})
		})
		got := callContext(ctx, nil, "run", "-e", "x")
		assert.Equal(t, result{130, "before\n", ""}, got)
		assert.True(t, <-canceled, "the program must be ended")
	})
	t.Run("while the code is typed", func(t *testing.T) {
		r, w := io.Pipe()
		defer w.Close()
		ctx, cancel := context.WithTimeout(context.Background(), 10*time.Millisecond)
		defer cancel()
		assert.Equal(t, result{130, "", ""}, callContext(ctx, r, "run", "-"))
	})
}

func TestRunRefusesHugeCode(t *testing.T) {
	got := call(t, strings.NewReader(strings.Repeat("#", wire.MaxCode+1)), "run", "-")
	assert.Equal(t, 125, got.code)
	assert.Contains(t, got.err, "larger than 16777216 bytes")
}

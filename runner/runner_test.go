package runner_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sandbox-broker/sandbox-broker/internal/channel"
	"github.com/sandbox-broker/sandbox-broker/runner"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// The test binary is also the runner: tests start it as a process of its own,
// since a runner reaps every child it has.
func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == argFile {
		ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM) // as main has it
		err := runner.File(ctx, os.Args[2:], os.Stdin, os.Stdout, os.Stderr)
		stop()
		if err != nil {
			os.Exit(1)
		}
		os.Exit(0)
	}
	switch os.Getenv("RUNNER_TEST_AS") {
	case "serve":
		o := runner.Options{
			Socket: os.Getenv("RUNNER_TEST_SOCKET"), Self: []string{os.Args[0], argFile},
			Log: slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelWarn})),
		}
		o.Spares, o.Preload = runner.SparesFromEnviron()
		o.Limits = runner.LimitsFromEnviron()
		if os.Getenv("SANDBOX_TEST_HASTE") != "" {
			runner.HastenPreload(time.Second)
		}
		// Programs of two runners can be compared only if they see the same.
		_ = os.Unsetenv("RUNNER_TEST_AS")
		_ = os.Unsetenv("RUNNER_TEST_SOCKET")
		if err := runner.Serve(context.Background(), o); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	case "connect":
		if err := runner.Connect(context.Background(), os.Getenv("RUNNER_TEST_SOCKET"), os.Stdin, os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// argFile is the argument with which a runner starts this program for a file.
const argFile = "runner-test-file"

const lease = "lease-1"

var key = bytes.Repeat([]byte{7}, 32)

// sandbox is a runner process with its workspace.
type sandbox struct {
	t      testing.TB
	socket string
	dir    string
	cmd    *exec.Cmd
	log    *logBuffer // what it writes to its standard error
}

// logBuffer may be read while it is written.
type logBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (l *logBuffer) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(b)
}

func (l *logBuffer) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

func startRunner(t testing.TB, env ...string) *sandbox {
	t.Helper()
	return startRunnerIn(t, t.TempDir(), "", env...)
}

// startRunnerIn starts a runner whose workspace is dir; name tells the runners of
// one test apart.
func startRunnerIn(t testing.TB, dir, name string, env ...string) *sandbox {
	t.Helper()
	s := &sandbox{t: t, dir: dir, socket: fmt.Sprintf("@runner-test-%d-%s", os.Getpid(), strings.ReplaceAll(t.Name()+name, "/", "-"))}
	s.cmd = s.self("serve")
	s.cmd.Dir = s.dir
	s.cmd.Env = append(s.cmd.Env, env...)
	s.log = &logBuffer{}
	s.cmd.Stderr = s.log
	require.NoError(t, s.cmd.Start())
	t.Cleanup(func() {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
		if t.Failed() || strings.Contains(s.log.String(), "DATA RACE") {
			t.Errorf("the runner's log:\n%s", s.log)
		}
	})
	return s
}

func (s *sandbox) self(as string) *exec.Cmd {
	cmd := exec.Command(os.Args[0])
	// The race detector's pause at an exit is long, and so many files' helpers exit.
	cmd.Env = append(os.Environ(), "RUNNER_TEST_AS="+as, "RUNNER_TEST_SOCKET="+s.socket, "GORACE=atexit_sleep_ms=0")
	return cmd
}

// connect makes one channel's transport, as pods/exec does.
func (s *sandbox) connect() net.Conn {
	s.t.Helper()
	cmd := s.self("connect")
	in, err := cmd.StdinPipe()
	require.NoError(s.t, err)
	out, err := cmd.StdoutPipe()
	require.NoError(s.t, err)
	cmd.Stderr = os.Stderr
	require.NoError(s.t, cmd.Start())
	c := &procConn{r: out.(*os.File), w: in, cmd: cmd}
	s.t.Cleanup(func() { _ = c.Close() })
	return c
}

type procConn struct {
	net.Conn
	r    *os.File
	w    io.WriteCloser
	cmd  *exec.Cmd
	once sync.Once
}

func (c *procConn) Read(b []byte) (int, error)       { return c.r.Read(b) }
func (c *procConn) Write(b []byte) (int, error)      { return c.w.Write(b) }
func (c *procConn) SetDeadline(time.Time) error      { return nil }
func (c *procConn) SetReadDeadline(time.Time) error  { return nil }
func (c *procConn) SetWriteDeadline(time.Time) error { return nil }
func (c *procConn) LocalAddr() net.Addr              { return &net.UnixAddr{Name: "test"} }
func (c *procConn) RemoteAddr() net.Addr             { return &net.UnixAddr{Name: "test"} }
func (c *procConn) Close() error {
	c.once.Do(func() {
		_ = c.cmd.Process.Kill()
		_ = c.w.Close()
		_ = c.r.Close()
		_ = c.cmd.Wait()
	})
	return nil
}

// open is a bound channel.
func (s *sandbox) open() *channel.Client {
	s.t.Helper()
	ctx := deadline(s.t)
	c, err := channel.Open(ctx, s.connect(), key, "")
	require.NoError(s.t, err)
	s.t.Cleanup(c.Close)
	require.NoError(s.t, c.Bind(ctx, channel.Bind{Lease: lease, Tenant: "a"}))
	return c
}

func deadline(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

func start(p wire.Program) channel.Start {
	return channel.Start{
		Lease: lease, Program: &p, Timeout: 20 * time.Second,
		Stdout: wire.Credit{Limit: wire.MaxWindow}, Stderr: wire.Credit{Limit: wire.MaxWindow},
	}
}

// result is what an exec did.
type result struct {
	stdout, stderr string
	ending         wire.Ending
	err            *wire.Error
}

// collect reads a stream to its end and confirms it, granting credit as it goes.
func collect(t testing.TB, s *channel.ExecStream) result {
	t.Helper()
	var r result
	var out, err bytes.Buffer
	for {
		f, rerr := s.Recv()
		require.NoError(t, rerr)
		switch f.Kind {
		case wire.KindStdout:
			require.EqualValues(t, out.Len(), f.Offset)
			out.Write(f.Payload)
			require.NoError(t, s.Send(wire.Window{FD: wire.Stdout, Acked: uint64(out.Len()), Limit: uint64(out.Len()) + wire.MaxWindow}.Frame(0)))
		case wire.KindStderr:
			require.EqualValues(t, err.Len(), f.Offset)
			err.Write(f.Payload)
			require.NoError(t, s.Send(wire.Window{FD: wire.Stderr, Acked: uint64(err.Len()), Limit: uint64(err.Len()) + wire.MaxWindow}.Frame(0)))
		case wire.KindExit:
			require.NoError(t, json.Unmarshal(f.Payload, &r.ending))
			r.stdout, r.stderr = out.String(), err.String()
			require.NoError(t, s.Send(wire.Frame{Kind: wire.KindDone}))
			return r
		case wire.KindError:
			r.err = &wire.Error{}
			require.NoError(t, json.Unmarshal(f.Payload, r.err))
			return r
		case wire.KindResponse, wire.KindWindow:
		default:
			t.Fatalf("unexpected %s", f.Kind)
		}
	}
}

func run(t testing.TB, c *channel.Client, id string, p wire.Program, code string) result {
	t.Helper()
	s, err := c.Exec(deadline(t), id, start(p), []byte(code))
	require.NoError(t, err)
	defer s.Close()
	return collect(t, s)
}

func sh(script string) wire.Program { return wire.Program{Argv: []string{"sh", "-c", script}} }

func TestExecEndings(t *testing.T) {
	c := startRunner(t).open()
	for name, tc := range map[string]struct {
		p      wire.Program
		stdout string
		ending wire.Ending
	}{
		"exit 0":     {sh("echo hi"), "hi\n", wire.Ending{Reason: wire.ReasonExited}},
		"exit 1":     {sh("exit 1"), "", wire.Ending{Reason: wire.ReasonExited, ExitCode: 1}},
		"exit 255":   {sh("exit 255"), "", wire.Ending{Reason: wire.ReasonExited, ExitCode: 255}},
		"signal":     {sh("kill -KILL $$"), "", wire.Ending{Reason: wire.ReasonSignaled, Signal: "SIGKILL"}},
		"background": {sh("sleep 60 & echo started"), "started\n", wire.Ending{Reason: wire.ReasonExited}},
		"daemon":     {sh("setsid sh -c 'sleep 60' & echo started"), "started\n", wire.Ending{Reason: wire.ReasonExited}},
		"no input":   {sh("cat; echo end"), "end\n", wire.Ending{Reason: wire.ReasonExited}},
	} {
		t.Run(name, func(t *testing.T) {
			began := time.Now()
			r := run(t, c, strings.ReplaceAll(name, " ", "-"), tc.p, "")
			require.Nil(t, r.err)
			require.Equal(t, tc.stdout, r.stdout)
			require.Equal(t, tc.ending.Reason, r.ending.Reason)
			require.Equal(t, tc.ending.ExitCode, r.ending.ExitCode)
			require.Equal(t, tc.ending.Signal, r.ending.Signal)
			require.True(t, r.ending.Complete)
			require.EqualValues(t, len(r.stdout), r.ending.StdoutBytes)
			require.Less(t, time.Since(began), strayBound, "a child that holds stdout must not keep the exec open")
		})
	}
}

// strayBound is well under the sleeps of the programs that must be killed.
const strayBound = 10 * time.Second

func TestLanguages(t *testing.T) {
	s := startRunner(t)
	c := s.open()
	for lang, code := range map[string]string{
		"python": "import sys\nprint(1+1, __file__, sys.argv[1:])",
		"shell":  "echo $((1+1)) $0 [\\'$1\\']",
		"node":   "console.log(1+1, process.argv[1].split('/').pop(), `['${process.argv[2]}']`)",
	} {
		t.Run(lang, func(t *testing.T) {
			if _, err := exec.LookPath(map[string]string{"python": "python3", "shell": "bash", "node": "node"}[lang]); err != nil {
				t.Skipf("this machine has no %s", lang)
			}
			r := run(t, c, lang, wire.Program{Language: lang, Argv: []string{"x"}}, code)
			require.Nil(t, r.err)
			require.Regexp(t, `^2 (.*/)?main\.(py|sh|js) \['x'\]\n$`, r.stdout, r.stderr)
		})
	}
	left, err := os.ReadDir(s.dir)
	require.NoError(t, err)
	require.Empty(t, left, "scripts are removed")
}

func TestTimeoutKeepsOutput(t *testing.T) {
	c := startRunner(t).open()
	st := start(sh("echo before; trap '' TERM; sleep 60; sleep 60"))
	st.Timeout = 300 * time.Millisecond
	s, err := c.Exec(deadline(t), "x", st, nil)
	require.NoError(t, err)
	r := collect(t, s)
	require.Equal(t, wire.ReasonTimeout, r.ending.Reason)
	require.Equal(t, "before\n", r.stdout)
}

func TestStdin(t *testing.T) {
	c := startRunner(t).open()
	t.Run("half close", func(t *testing.T) {
		p := sh("cat; echo end")
		p.Stdin = true
		s, err := c.Exec(deadline(t), "half", start(p), nil)
		require.NoError(t, err)
		require.NoError(t, s.Send(wire.Frame{Kind: wire.KindStdin, Payload: []byte("hello ")}))
		require.NoError(t, s.Send(wire.Frame{Kind: wire.KindStdin, Offset: 6, Payload: []byte("world\n")}))
		require.NoError(t, s.Send(wire.Frame{Kind: wire.KindStdinEnd, Offset: 12}))
		require.Equal(t, "hello world\nend\n", collect(t, s).stdout)
	})
	t.Run("never read", func(t *testing.T) {
		p := sh("exit 3")
		p.Stdin = true
		s, err := c.Exec(deadline(t), "never", start(p), nil)
		require.NoError(t, err)
		require.NoError(t, s.Send(wire.Frame{Kind: wire.KindStdin, Payload: make([]byte, wire.MaxData)}))
		require.Equal(t, 3, collect(t, s).ending.ExitCode)
	})
	t.Run("gap", func(t *testing.T) {
		p := sh("cat")
		p.Stdin = true
		s, err := c.Exec(deadline(t), "gap", start(p), nil)
		require.NoError(t, err)
		require.NoError(t, s.Send(wire.Frame{Kind: wire.KindStdin, Offset: 9, Payload: []byte("x")}))
		r := collect(t, s)
		require.NotNil(t, r.err)
		require.Equal(t, "stdin.offset", r.err.Field)
	})
	t.Run("beyond credit", func(t *testing.T) {
		p := sh("sleep 5")
		p.Stdin = true
		s, err := c.Exec(deadline(t), "credit", start(p), nil)
		require.NoError(t, err)
		for i := range 10 {
			if err := s.Send(wire.Frame{Kind: wire.KindStdin, Offset: uint64(i) * wire.MaxData, Payload: make([]byte, wire.MaxData)}); err != nil {
				break
			}
		}
		r := collect(t, s)
		require.NotNil(t, r.err)
		require.Equal(t, "stdin", r.err.Field)
	})
}

func TestAttachAfterTheChannelBroke(t *testing.T) {
	s := startRunner(t)
	c := s.open()
	st := start(sh("echo one; read x; echo two"))
	st.Program.Stdin = true
	first, err := c.Exec(deadline(t), "x", st, nil)
	require.NoError(t, err)
	var got string
	for got != "one\n" {
		f, err := first.Recv()
		require.NoError(t, err)
		if f.Kind == wire.KindStdout {
			got += string(f.Payload)
		}
	}
	c.Close()

	again, err := channel.Open(deadline(t), s.connect(), key, c.Boot())
	require.NoError(t, err)
	defer again.Close()
	require.NoError(t, again.Bind(deadline(t), channel.Bind{Lease: lease, Tenant: "a"}))
	// Starting the same ID attaches; offset 0 gets everything once more.
	second, err := again.Exec(deadline(t), "x", st, nil)
	require.NoError(t, err)
	require.NoError(t, second.Send(wire.Frame{Kind: wire.KindStdin, Payload: []byte("\n")}))
	r := collect(t, second)
	require.Equal(t, "one\ntwo\n", r.stdout)
}

func TestHandshakeRefusals(t *testing.T) {
	s := startRunner(t)
	c := s.open()
	_, err := channel.Open(deadline(t), s.connect(), bytes.Repeat([]byte{8}, 32), "")
	require.ErrorIs(t, err, channel.ErrKeyRefused)
	_, err = channel.Open(deadline(t), s.connect(), key, strings.Repeat("0", 32))
	var changed *channel.BootChangedError
	require.ErrorAs(t, err, &changed)
	require.ErrorIs(t, c.Bind(deadline(t), channel.Bind{Lease: "other", Tenant: "b"}), wire.ErrConflict)
}

func TestLargeOutputIsComplete(t *testing.T) {
	c := startRunner(t).open()
	r := run(t, c, "big", sh("head -c 20000000 /dev/zero; head -c 300000 /dev/zero >&2"), "")
	require.Len(t, r.stdout, 20_000_000)
	require.Len(t, r.stderr, 300_000)
	require.True(t, r.ending.Complete)
}

func TestUnknownProgram(t *testing.T) {
	c := startRunner(t).open()
	for name, tc := range map[string]struct {
		p     wire.Program
		field string
	}{
		"language": {wire.Program{Language: "cobol"}, "program.language"},
		"argv":     {wire.Program{Argv: []string{"no-such-program"}}, "program.argv"},
		"dir":      {wire.Program{Argv: []string{"true"}, Dir: "nowhere"}, "program.dir"},
	} {
		_, err := c.Exec(deadline(t), name, start(tc.p), nil)
		e := wire.AsError(err)
		require.NotNil(t, e, name)
		require.Equal(t, tc.field, e.Field)
	}
}

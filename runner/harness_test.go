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
	"github.com/sandbox-broker/sandbox-broker/internal/processtest"
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
		o.Prepare = runner.PrepareFromEnviron()
		o.Limits = runner.LimitsFromEnviron()
		if os.Getenv("SANDBOX_TEST_HASTE") != "" {
			runner.HastenPreload(5 * time.Second)
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

var lease = channel.Bind{Lease: "lease-1", Tenant: "a"}

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
	// A module that Python compiles into its folder would change it, and a spare is given
	// up when a folder of its modules changes.
	s.cmd.Env = append(append(s.cmd.Env, "PYTHONDONTWRITEBYTECODE=1"), env...)
	s.log = &logBuffer{}
	s.cmd.Stderr = s.log
	require.NoError(t, s.cmd.Start())
	t.Cleanup(func() {
		_ = s.cmd.Process.Kill()
		_ = s.cmd.Wait()
		processtest.EndAllIn(dir)
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
	require.NoError(s.t, c.Bind(ctx, lease))
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
		Bind: lease, Program: &p, Timeout: 20 * time.Second,
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

package sandboxclient_test

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"strings"
	"testing"
	"testing/iotest"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/brokertest"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

func hexSum(text string) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])
}

// reportOf is the line that a helper ends with.
func reportOf(content string, mode uint32) string {
	return string(wire.Marshal(wire.FileReport{Size: int64(len(content)), SHA256: hexSum(content), Mode: mode})) + "\n"
}

func files(t *testing.T, exec func(*brokertest.Stream)) *sandboxclient.Files {
	t.Helper()
	c, _ := connect(t, leases(exec))
	return newLease(t, c).Files()
}

func TestFilesWrite(t *testing.T) {
	for name, tt := range map[string]struct {
		r       io.Reader
		content string
		mode    fs.FileMode
		asked   uint32
	}{
		"short":         {strings.NewReader("hello"), "hello", 0o600, 0o600},
		"default mode":  {strings.NewReader("hello"), "hello", 0, 0o644},
		"empty":         {strings.NewReader(""), "", 0, 0o644},
		"nil":           {nil, "", 0, 0o644},
		"data with EOF": {iotest.DataErrReader(strings.NewReader("hello")), "hello", 0, 0o644},
		"large":         {strings.NewReader(strings.Repeat("x", 500_000)), strings.Repeat("x", 500_000), 0, 0o644},
	} {
		t.Run(name, func(t *testing.T) {
			requests := make(chan wire.Request, 1)
			f := files(t, func(s *brokertest.Stream) {
				requests <- s.Request
				s.Respond(accepted)
				s.Stdout(reportOf(s.ReadStdin(1<<20), 0))
				s.Exit(exited(0))
			})
			info, err := f.Write(testContext(t), "a/b", tt.r, tt.mode)
			require.NoError(t, err)
			assert.Equal(t, sandboxclient.FileInfo{Size: int64(len(tt.content)), SHA256: hexSum(tt.content), Mode: fs.FileMode(tt.asked)}, info)
			req := <-requests
			assert.Equal(t, wire.OpExec, req.Op)
			assert.Equal(t, "l1", req.Lease)
			assert.Equal(t, &wire.Program{Stdin: true, File: &wire.FileOp{Op: wire.FileWrite, Path: "a/b", Mode: tt.asked}}, req.Program)
		})
	}
}

func TestFilesRead(t *testing.T) {
	for name, content := range map[string]string{"short": "hello", "empty": "", "large": strings.Repeat("x", 500_000)} {
		t.Run(name, func(t *testing.T) {
			programs := make(chan *wire.Program, 1)
			f := files(t, func(s *brokertest.Stream) {
				programs <- s.Request.Program
				s.Respond(accepted)
				s.Stdout(content)
				s.Stderr(reportOf(content, 0o640))
				s.Exit(exited(0))
			})
			var got strings.Builder
			info, err := f.Read(testContext(t), "a/b", &got)
			require.NoError(t, err)
			assert.Equal(t, content, got.String())
			assert.Equal(t, sandboxclient.FileInfo{Size: int64(len(content)), SHA256: hexSum(content), Mode: 0o640}, info)
			assert.Equal(t, &wire.Program{File: &wire.FileOp{Op: wire.FileRead, Path: "a/b"}}, <-programs)
		})
	}
}

// What the helper, or something in its place, says at the end.
func TestFilesFailures(t *testing.T) {
	told := func(e *wire.Error) string { return string(wire.Marshal(wire.FileFailure{Error: e})) + "\n" }
	for name, tt := range map[string]struct {
		line string
		code int
		is   error
		text string
	}{
		"not found": {told(&wire.Error{Code: wire.CodeNotFound, Field: "program.file.path", Message: "no such file"}), 1,
			sandboxclient.ErrNotFound, "not_found (program.file.path): no such file [request r1]"},
		"no space": {told(&wire.Error{Code: wire.CodeExhausted, Reason: "no_space", Message: "full"}), 1, sandboxclient.ErrExhausted, "full"},
		"a code that is not the sandbox's to give": {told(wire.Errorf(wire.CodeUnauthenticated, "show your token")), 1,
			sandboxclient.ErrInternal, "the sandbox failed to move the file"},
		"a failure without a word": {"", 1, sandboxclient.ErrInternal, "exit status 1"},
		"a panic":                  {"panic: oh\n\x1b[2J", 2, sandboxclient.ErrInternal, `(exit status 2): "panic: oh\n\x1b[2J"`},
		"a null":                   {`{"error":null}`, 1, sandboxclient.ErrInternal, "exit status 1"},
		"much":                     {strings.Repeat("x", 100_000), 1, sandboxclient.ErrInternal, "exit status 1"},
		"success without a word":   {"", 0, sandboxclient.ErrInternal, "did not report"},
		"success with an error":    {told(wire.Errorf(wire.CodeNotFound, "no")), 0, sandboxclient.ErrInternal, "did not report"},
		"another size":             {fmt.Sprintf(`{"size":6,"sha256":%q}`, hexSum("hello")), 0, sandboxclient.ErrInternal, "arrived changed"},
		"another hash":             {fmt.Sprintf(`{"size":5,"sha256":%q}`, hexSum("hullo")), 0, sandboxclient.ErrInternal, "arrived changed"},
	} {
		t.Run(name, func(t *testing.T) {
			check := func(err error) {
				t.Helper()
				require.ErrorIs(t, err, tt.is)
				assert.False(t, errors.As(err, new(*sandboxclient.ExitError)))
				assert.Contains(t, err.Error(), tt.text)
				assert.Less(t, len(err.Error()), 1000)
			}
			f := files(t, func(s *brokertest.Stream) {
				s.Respond(accepted)
				if s.Request.Program.File.Op == wire.FileRead {
					s.Stdout("hello")
					s.Stderr(tt.line)
				} else {
					s.ReadStdin(1000)
					if tt.code == 0 {
						s.Stdout(tt.line)
					} else {
						s.Stderr(tt.line)
					}
				}
				s.Exit(exited(tt.code))
			})
			info, err := f.Read(testContext(t), "x", nil)
			check(err)
			assert.Zero(t, info)
			info, err = f.Write(testContext(t), "x", strings.NewReader("hello"), 0)
			check(err)
			assert.Zero(t, info)
		})
	}
}

func TestFilesEndedFromOutside(t *testing.T) {
	for name, ending := range map[string]wire.Ending{
		"timeout": {Reason: wire.ReasonTimeout, ExitCode: 1},
		"oom":     {Reason: wire.ReasonOOM},
		"lost":    {Reason: wire.ReasonLost, Cause: wire.CauseEvicted},
		"killed":  {Reason: wire.ReasonSignaled, Signal: "SIGKILL"},
	} {
		t.Run(name, func(t *testing.T) {
			f := files(t, func(s *brokertest.Stream) {
				s.Respond(accepted)
				s.Exit(ending)
			})
			var exit *sandboxclient.ExitError
			_, err := f.Read(testContext(t), "x", nil)
			require.ErrorAs(t, err, &exit)
			assert.Equal(t, ending, exit.Ending)
			_, err = f.Write(testContext(t), "x", strings.NewReader("hello"), 0)
			require.ErrorAs(t, err, &exit)
			assert.Equal(t, ending, exit.Ending)
		})
	}
	t.Run("disconnected", func(t *testing.T) {
		f := files(t, func(s *brokertest.Stream) {
			s.Respond(accepted)
			s.Conn.Cut()
		})
		var lost *sandboxclient.DisconnectedError
		_, err := f.Read(testContext(t), "x", nil)
		require.ErrorAs(t, err, &lost)
	})
	t.Run("refused", func(t *testing.T) {
		f := files(t, func(s *brokertest.Stream) { s.Fail(wire.Errorf(wire.CodeLeaseExpired, "over")) })
		_, err := f.Write(testContext(t), "x", nil, 0)
		require.ErrorIs(t, err, sandboxclient.ErrLeaseExpired)
	})
}

// The end of the input says that a content is whole. It must not be sent for one
// that is not.
func TestFilesWriteOfHalfAContent(t *testing.T) {
	broken := errors.New("disk on fire")
	for name, tt := range map[string]struct {
		last func(cancel func()) error // what the second Read brings
		want error
	}{
		"a failing reader":    {func(func()) error { return broken }, broken},
		"an unexpected end":   {func(func()) error { return io.ErrUnexpectedEOF }, io.ErrUnexpectedEOF},
		"an end with a cause": {func(func()) error { return fmt.Errorf("peer: %w", io.EOF) }, nil},
		"an end after a cancel": {func(cancel func()) error {
			cancel()
			return io.EOF
		}, context.Canceled},
	} {
		t.Run(name, func(t *testing.T) {
			frames := make(chan []wire.Kind, 1)
			f := files(t, func(s *brokertest.Stream) {
				s.Respond(accepted)
				s.GrantStdin(1000)
				var kinds []wire.Kind
				for {
					frame, ok := s.Next()
					if !ok || frame.Kind == wire.KindDone {
						frames <- kinds
						return
					}
					kinds = append(kinds, frame.Kind)
					if frame.Kind == wire.KindCancel {
						s.Exit(wire.Ending{Reason: wire.ReasonCanceled})
					}
				}
			})
			ctx, cancel := context.WithCancel(testContext(t))
			defer cancel()
			reads := 0
			_, err := f.Write(ctx, "x", readerFunc(func(p []byte) (int, error) {
				if reads++; reads == 1 {
					return copy(p, "half"), nil
				}
				return 0, tt.last(cancel)
			}), 0)
			require.Error(t, err)
			if tt.want != nil {
				require.ErrorIs(t, err, tt.want)
			}
			assert.False(t, errors.As(err, new(*sandboxclient.ExitError)))
			sent := <-frames
			assert.Contains(t, sent, wire.KindCancel)
			assert.NotContains(t, sent, wire.KindStdinEnd, "that would put half a file in place")
		})
	}
}

type writerFunc func([]byte) (int, error)

func (f writerFunc) Write(p []byte) (int, error) { return f(p) }

func TestFilesReadIntoAFailingWriter(t *testing.T) {
	f := files(t, func(s *brokertest.Stream) {
		s.Respond(accepted)
		s.Stdout("hello")
		if _, ok := s.Await(wire.KindCancel); ok {
			s.Exit(wire.Ending{Reason: wire.ReasonCanceled})
		}
	})
	full := errors.New("disk full")
	_, err := f.Read(testContext(t), "x", writerFunc(func([]byte) (int, error) { return 0, full }))
	require.ErrorIs(t, err, full)
	assert.False(t, errors.As(err, new(*sandboxclient.ExitError)))
	assert.ErrorContains(t, err, "writing the file's content")
}

func TestFilesPathThatIsNoText(t *testing.T) {
	f := files(t, func(s *brokertest.Stream) { s.Fail(wire.Errorf(wire.CodeInternal, "nothing should be asked for")) })
	_, err := f.Read(testContext(t), "a\xff", nil)
	require.ErrorIs(t, err, sandboxclient.ErrInvalid)
	assert.Equal(t, "program.file.path", wire.AsError(err).Field)
}

// A file is moved over one connection: nobody can take up the half of it.
func TestFilesEndWithTheConnection(t *testing.T) {
	f := files(t, func(s *brokertest.Stream) {
		assert.NotEqual(t, wire.OpAttach, s.Request.Op)
		s.Respond(accepted)
		s.Stdout("half")
		s.Conn.Cut()
	})
	_, err := f.Read(testContext(t), "x", nil)
	require.ErrorAs(t, err, new(*sandboxclient.DisconnectedError))
}

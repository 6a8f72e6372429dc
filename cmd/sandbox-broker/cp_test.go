//go:build unix

package main

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient/brokertest"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// remoteFile is a sandbox with one file of this content and mode, which takes
// writes, too. It passes on what was asked for.
func remoteFile(t *testing.T, content string, mode uint32) <-chan *brokertest.Stream {
	t.Helper()
	streams := make(chan *brokertest.Stream, 1)
	scriptBroker(t, func(s *brokertest.Stream) {
		s.Respond(wire.Response{})
		if s.Request.Program.File.Op == wire.FileWrite {
			s.Code = s.ReadStdin(1 << 20) // what a file's content is for its request
			s.Stdout(line(s.Code, 0))
		} else {
			s.Stdout(content)
			s.Stderr(line(content, mode))
		}
		s.Exit(wire.Ending{Reason: wire.ReasonExited})
		streams <- s
	})
	return streams
}

// line is what a sandbox reports of a file.
func line(content string, mode uint32) string {
	sum := sha256.Sum256([]byte(content))
	return string(wire.Marshal(wire.FileReport{Size: int64(len(content)), SHA256: hex.EncodeToString(sum[:]), Mode: mode})) + "\n"
}

// holds requires that a directory has one file with this content and mode.
func holds(t *testing.T, dir, name, content string, mode fs.FileMode) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	require.Len(t, entries, 1)
	require.Equal(t, name, entries[0].Name())
	got, err := os.ReadFile(filepath.Join(dir, name))
	require.NoError(t, err)
	assert.Equal(t, content, string(got))
	st, err := os.Lstat(filepath.Join(dir, name))
	require.NoError(t, err)
	assert.Equal(t, mode, st.Mode())
}

func TestCpToTheSandbox(t *testing.T) {
	dir := t.TempDir()
	src := filepath.Join(dir, "in:put.csv")
	require.NoError(t, os.WriteFile(src, []byte("content"), 0o600))
	require.NoError(t, os.Chmod(src, 0o751))
	for name, tt := range map[string]struct {
		src, dst string
		want     wire.FileOp
	}{
		"a file":           {src, "l1:data/x", wire.FileOp{Path: "data/x", Mode: 0o751}},
		"an absolute path": {src, "l1:/tmp/x", wire.FileOp{Path: "/tmp/x", Mode: 0o751}},
		"into a directory": {src, "l1:data/", wire.FileOp{Path: "data/in:put.csv", Mode: 0o751}},
		"the workspace":    {src, "l1:", wire.FileOp{Path: "in:put.csv", Mode: 0o751}},
		"standard input":   {"-", "l1:x:y", wire.FileOp{Path: "x:y", Mode: 0o644}},
	} {
		t.Run(name, func(t *testing.T) {
			streams := remoteFile(t, "", 0)
			require.Equal(t, result{}, call(t, strings.NewReader("content"), "cp", tt.src, tt.dst))
			s := <-streams
			assert.Equal(t, "l1", s.Request.Lease)
			tt.want.Op = wire.FileWrite
			assert.Equal(t, tt.want, *s.Request.Program.File)
			assert.Equal(t, "content", s.Code)
		})
	}
}

func TestCpFromTheSandbox(t *testing.T) {
	for name, tt := range map[string]struct {
		dst   string // in a directory of its own
		after string // the file's name there
		mode  uint32
		want  fs.FileMode
	}{
		"a file":           {"copy", "copy", 0o640, 0o640},
		"into a directory": {"", "out.csv", 0o755, 0o755},
		"a wide mode":      {"copy", "copy", 0o777, 0o755},
		"a special mode":   {"copy", "copy", 0o4755, 0o755},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			streams := remoteFile(t, "content", tt.mode)
			require.Equal(t, result{}, call(t, nil, "cp", "l1:data/out.csv", filepath.Join(dir, tt.dst)))
			s := <-streams
			assert.Equal(t, "l1", s.Request.Lease)
			assert.Equal(t, wire.FileOp{Op: wire.FileRead, Path: "data/out.csv"}, *s.Request.Program.File)
			holds(t, dir, tt.after, "content", tt.want)
		})
	}
	t.Run("here", func(t *testing.T) {
		t.Chdir(t.TempDir())
		remoteFile(t, "content", 0o644)
		require.Equal(t, result{}, call(t, nil, "cp", "l1:a", "a"))
		holds(t, ".", "a", "content", 0o644)
	})
	t.Run("standard output", func(t *testing.T) {
		remoteFile(t, "content", 0o644)
		assert.Equal(t, result{0, "content", ""}, call(t, nil, "cp", "l1:a", "-"))
	})
	t.Run("over an older file", func(t *testing.T) {
		dir := t.TempDir()
		require.NoError(t, os.WriteFile(filepath.Join(dir, "a"), []byte("something older"), 0o600))
		remoteFile(t, "content", 0o644)
		require.Equal(t, result{}, call(t, nil, "cp", "l1:a", dir))
		holds(t, dir, "a", "content", 0o644)
	})
}

func TestCpDoesNotFollowLinks(t *testing.T) {
	dir, outside := t.TempDir(), filepath.Join(t.TempDir(), "outside")
	require.NoError(t, os.WriteFile(outside, []byte("untouched"), 0o600))
	require.NoError(t, os.Symlink(outside, filepath.Join(dir, "a")))
	remoteFile(t, "content", 0o644)
	for _, dst := range []string{filepath.Join(dir, "a"), dir} {
		got := call(t, nil, "cp", "l1:a", dst)
		assert.Equal(t, 125, got.code)
		assert.Contains(t, got.err, "a is a symbolic link, which is not followed")
	}
	holds(t, filepath.Dir(outside), "outside", "untouched", 0o600)
	st, err := os.Lstat(filepath.Join(dir, "a"))
	require.NoError(t, err)
	assert.NotZero(t, st.Mode()&fs.ModeSymlink, "nor is it replaced")
}

// A copy that fails leaves what was there, and nothing beside it.
func TestCpFailures(t *testing.T) {
	told := func(e *wire.Error) func(*brokertest.Stream) {
		return func(s *brokertest.Stream) {
			s.Respond(wire.Response{RequestID: "r1"})
			s.Stdout("half")
			s.Stderr(string(wire.Marshal(wire.FileFailure{Error: e})))
			s.Exit(wire.Ending{Reason: wire.ReasonExited, ExitCode: 1})
		}
	}
	for name, tt := range map[string]struct {
		handle func(*brokertest.Stream)
		text   string
	}{
		"not found": {told(&wire.Error{Code: wire.CodeNotFound, Message: "no such\n\x1b[2Jfile"}), "copying f: not_found: no such  [2Jfile [request r1]\n"},
		"no space":  {told(&wire.Error{Code: wire.CodeExhausted, Reason: "no_space", Message: "the workspace is full"}), "full [request r1]; remove something there first\n"},
		"changed": {func(s *brokertest.Stream) {
			s.Respond(wire.Response{})
			if s.Request.Program.File.Op == wire.FileRead {
				s.Stdout("half")
				s.Stderr(line("all of it", 0o644))
			} else {
				s.ReadStdin(1000)
				s.Stdout(line("all of it", 0))
			}
			s.Exit(wire.Ending{Reason: wire.ReasonExited})
		}, "the file arrived changed"},
		"timeout": {func(s *brokertest.Stream) {
			s.Respond(wire.Response{})
			s.Exit(wire.Ending{Reason: wire.ReasonTimeout})
		}, "copying f: ended by its timeout\n"},
		"lost late": {func(s *brokertest.Stream) {
			s.Respond(wire.Response{})
			s.Conn.Cut()
		}, "copying again does no harm\n"},
		"lost early": {func(s *brokertest.Stream) { s.Conn.Cut() }, "copying again does no harm\n"},
		"refused":    {func(s *brokertest.Stream) { s.Fail(wire.Errorf(wire.CodeLeaseExpired, "over")) }, "copying f: lease_expired: over\n"},
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			f := filepath.Join(dir, "f")
			require.NoError(t, os.WriteFile(f, []byte("old"), 0o600))
			scriptBroker(t, tt.handle)
			for _, args := range [][]string{{"cp", "l1:f", f}, {"cp", f, "l1:f"}} {
				got := call(t, nil, args...)
				assert.Equal(t, 125, got.code)
				assert.Contains(t, got.err, tt.text)
				assert.Equal(t, 1, strings.Count(got.err, "\n"), "one line: %q", got.err)
				holds(t, dir, "f", "old", 0o600)
			}
		})
	}
}

func TestCpInterrupted(t *testing.T) {
	dir := t.TempDir()
	ctx, cancel := context.WithCancel(context.Background())
	scriptBroker(t, func(s *brokertest.Stream) {
		s.Respond(wire.Response{})
		s.Stdout("half")
		cancel()
		if _, ok := s.Await(wire.KindCancel); ok {
			s.Exit(wire.Ending{Reason: wire.ReasonCanceled})
		}
	})
	assert.Equal(t, result{130, "", ""}, callContext(ctx, nil, "cp", "l1:f", filepath.Join(dir, "f")))
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	assert.Empty(t, entries)
}

func TestCpReadsAPipe(t *testing.T) {
	fifo := filepath.Join(t.TempDir(), "fifo")
	require.NoError(t, unix.Mkfifo(fifo, 0o600))
	go func() {
		f, err := os.OpenFile(fifo, os.O_WRONLY, 0)
		if err == nil {
			_, _ = f.WriteString("content")
			_ = f.Close()
		}
	}()
	streams := remoteFile(t, "", 0)
	require.Equal(t, result{}, call(t, nil, "cp", fifo, "l1:f"))
	s := <-streams
	assert.Equal(t, "content", s.Code)
	assert.EqualValues(t, 0o644, s.Request.Program.File.Mode)
}

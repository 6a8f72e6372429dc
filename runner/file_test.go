package runner_test

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sandbox-broker/sandbox-broker/internal/channel"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

func writeOp(path string, mode uint32) wire.Program {
	return wire.Program{Stdin: true, File: &wire.FileOp{Op: wire.FileWrite, Path: path, Mode: mode}}
}

func readOp(path string) wire.Program {
	return wire.Program{File: &wire.FileOp{Op: wire.FileRead, Path: path}}
}

// beginWrite starts a write and sends content, but not its end. It returns when
// the helper has taken the content into its file.
func (s *sandbox) beginWrite(c *channel.Client, id string, st channel.Start, content string) *channel.ExecStream {
	s.t.Helper()
	e, err := c.Exec(deadline(s.t), id, st, nil)
	require.NoError(s.t, err)
	s.t.Cleanup(e.Close)
	require.NoError(s.t, e.Send(wire.Frame{Kind: wire.KindStdin, Payload: []byte(content)}))
	scratch := filepath.Join(s.dir, filepath.Dir(st.Program.File.Path), ".sandbox-write-"+id)
	require.Eventually(s.t, func() bool {
		got, err := os.ReadFile(scratch)
		return err == nil && string(got) == content
	}, 20*time.Second, 5*time.Millisecond)
	return e
}

// write writes a whole file.
func write(t *testing.T, c *channel.Client, id string, p wire.Program, content string) result {
	t.Helper()
	s, err := c.Exec(deadline(t), id, start(p), nil)
	require.NoError(t, err)
	defer s.Close()
	if content != "" {
		require.NoError(t, s.Send(wire.Frame{Kind: wire.KindStdin, Payload: []byte(content)}))
	}
	require.NoError(t, s.Send(wire.Frame{Kind: wire.KindStdinEnd, Offset: uint64(len(content))}))
	return collect(t, s)
}

func hash(content string) string {
	h := sha256.Sum256([]byte(content))
	return hex.EncodeToString(h[:])
}

// report requires that an operation worked, and that line is the last it said.
func report(t *testing.T, r result, line string) wire.FileReport {
	t.Helper()
	require.Nil(t, r.err)
	require.Equal(t, wire.ReasonExited, r.ending.Reason)
	require.Zero(t, r.ending.ExitCode, r.stderr)
	require.Equal(t, 1, strings.Count(line, "\n"), "one line: %q", line)
	var got wire.FileReport
	require.NoError(t, json.Unmarshal([]byte(line), &got))
	return got
}

// failure requires that an operation failed by itself.
func failure(t *testing.T, r result) *wire.Error {
	t.Helper()
	require.Nil(t, r.err)
	require.Equal(t, wire.ReasonExited, r.ending.Reason)
	require.Equal(t, 1, r.ending.ExitCode, r.stderr)
	require.Equal(t, 1, strings.Count(r.stderr, "\n"), "one line: %q", r.stderr)
	var got wire.FileFailure
	require.NoError(t, json.Unmarshal([]byte(r.stderr), &got))
	require.NotNil(t, got.Error)
	return got.Error
}

// only requires that a directory holds these names and nothing else.
func only(t *testing.T, dir string, names ...string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	var got []string
	for _, e := range entries {
		got = append(got, e.Name())
	}
	require.Equal(t, names, got)
}

func TestFileRoundTrip(t *testing.T) {
	s := startRunner(t)
	c := s.open()
	outside := filepath.Join(t.TempDir(), "outside")
	for name, tc := range map[string]struct {
		path, content string
		mode, want    uint32
	}{
		"plain":           {"a", "hello", 0, 0o644},
		"binary":          {"b", "\x00\xff\r\n\x1b", 0o600, 0o600},
		"empty":           {"empty", "", 0, 0o644},
		"deep":            {"x/y/z/c", "deep", 0o755, 0o755},
		"against a umask": {"wide", "w", 0o777, 0o777},
		"read-only":       {"ro", "r", 0o444, 0o444},
		"absolute":        {outside, "o", 0, 0o644},
		"a name for flags": {
			"--help", "h", 0, 0o644,
		},
		"a name of other characters": {"ü\n\xe2\x82\xac ", "u", 0, 0o644},
	} {
		t.Run(name, func(t *testing.T) {
			id := strings.ReplaceAll(name, " ", "-")
			r := write(t, c, id+"-w", writeOp(tc.path, tc.mode), tc.content)
			want := wire.FileReport{Size: int64(len(tc.content)), SHA256: hash(tc.content)}
			require.Equal(t, want, report(t, r, r.stdout))
			require.Empty(t, r.stderr)

			r = run(t, c, id+"-r", readOp(tc.path), "")
			want.Mode = tc.want
			require.Equal(t, want, report(t, r, r.stderr))
			require.Equal(t, tc.content, r.stdout)
		})
	}
	only(t, s.dir, "--help", "a", "b", "empty", "ro", "wide", "x", "ü\n\xe2\x82\xac ")
	only(t, filepath.Dir(outside), "outside")
	only(t, filepath.Join(s.dir, "x", "y", "z"), "c")
}

func TestFileWriteReplaces(t *testing.T) {
	s := startRunner(t)
	c := s.open()
	require.NoError(t, os.WriteFile(filepath.Join(s.dir, "old"), []byte("something longer"), 0o600))
	require.NoError(t, os.Symlink("old", filepath.Join(s.dir, "link")))
	r := write(t, c, "link", writeOp("link", 0), "new")
	report(t, r, r.stdout)
	st, err := os.Lstat(filepath.Join(s.dir, "link"))
	require.NoError(t, err)
	require.True(t, st.Mode().IsRegular(), "the link itself is replaced")
	got, err := os.ReadFile(filepath.Join(s.dir, "old"))
	require.NoError(t, err)
	require.Equal(t, "something longer", string(got), "what it named is not touched")

	r = write(t, c, "old", writeOp("old", 0o640), "new")
	report(t, r, r.stdout)
	got, err = os.ReadFile(filepath.Join(s.dir, "old"))
	require.NoError(t, err)
	require.Equal(t, "new", string(got))
	only(t, s.dir, "link", "old")
}

func TestFileRefusals(t *testing.T) {
	s := startRunner(t)
	c := s.open()
	at := func(name string) string { return filepath.Join(s.dir, name) }
	require.NoError(t, os.Mkdir(at("dir"), 0o755))
	require.NoError(t, os.WriteFile(at("file"), nil, 0o600))
	require.NoError(t, os.Symlink("loop", at("loop")))
	require.NoError(t, unix.Mkfifo(at("fifo"), 0o600))
	l, err := net.Listen("unix", at("socket"))
	require.NoError(t, err)
	defer func() { _ = l.Close() }()
	for name, tc := range map[string]struct {
		p    wire.Program
		code wire.Code
		text string
	}{
		"read what is not there":     {readOp("missing"), wire.CodeNotFound, "no such file"},
		"read in what is not there":  {readOp("missing/file"), wire.CodeNotFound, "no such file"},
		"read a directory":           {readOp("dir"), wire.CodeInvalid, "names a directory"},
		"read the workspace":         {readOp("."), wire.CodeInvalid, "names a directory"},
		"read a FIFO without writer": {readOp("fifo"), wire.CodeInvalid, "no regular file"},
		"read a socket":              {readOp("socket"), wire.CodeInvalid, "opening the file"},
		"read a device":              {readOp("/dev/zero"), wire.CodeInvalid, "no regular file"},
		"read a loop":                {readOp("loop"), wire.CodeInvalid, "symbolic links"},
		"read under a file":          {readOp("file/x"), wire.CodeInvalid, "not a directory"},
		"read a path too long":       {readOp(strings.Repeat("x/", 2048)), wire.CodeInvalid, "too long"},
		"write a directory":          {writeOp("dir", 0), wire.CodeInvalid, "names a directory"},
		"write the workspace":        {writeOp(".", 0), wire.CodeInvalid, "names a directory"},
		"write the parent":           {writeOp("dir/..", 0), wire.CodeInvalid, "names a directory"},
		"write with a slash":         {writeOp("new/", 0), wire.CodeInvalid, "names a directory"},
		"write under a file":         {writeOp("file/x", 0), wire.CodeInvalid, "not a directory"},
		"write a name too long":      {writeOp(strings.Repeat("x", 300), 0), wire.CodeInvalid, "too long"},
	} {
		t.Run(name, func(t *testing.T) {
			id := strings.ReplaceAll(name, " ", "-")
			var r result
			if tc.p.Stdin {
				r = write(t, c, id, tc.p, "content")
			} else {
				r = run(t, c, id, tc.p, "")
			}
			e := failure(t, r)
			require.Equal(t, tc.code, e.Code, e.Message)
			require.Equal(t, "program.file.path", e.Field)
			require.Contains(t, e.Message, tc.text)
			require.Empty(t, r.stdout)
		})
	}
	only(t, s.dir, "dir", "fifo", "file", "loop", "socket")
	only(t, at("dir"))
}

func TestFileOfAnotherVersion(t *testing.T) {
	c := startRunner(t).open()
	_, err := c.Exec(deadline(t), "x", start(wire.Program{File: &wire.FileOp{Op: "append", Path: "a"}}), nil)
	require.ErrorIs(t, err, wire.ErrInvalid)
	require.Equal(t, "program.file.op", wire.AsError(err).Field)
}

// A write that does not come to the end of its content leaves the old file and
// nothing else, however it ended.
func TestFileWriteCutShort(t *testing.T) {
	for name, tc := range map[string]struct {
		cut    func(*testing.T, *channel.Client, *channel.ExecStream)
		reason wire.Reason // empty: nobody is there to hear it
	}{
		"canceled": {func(t *testing.T, _ *channel.Client, s *channel.ExecStream) {
			require.NoError(t, s.Send(wire.Frame{Kind: wire.KindCancel}))
		}, wire.ReasonCanceled},
		"killed": {func(t *testing.T, _ *channel.Client, s *channel.ExecStream) {
			require.NoError(t, s.Send(wire.JSONFrame(wire.KindSignal, 0, wire.Signal{Name: "SIGKILL"})))
		}, wire.ReasonSignaled},
		"stopped, then canceled": {func(t *testing.T, _ *channel.Client, s *channel.ExecStream) {
			require.NoError(t, s.Send(wire.JSONFrame(wire.KindSignal, 0, wire.Signal{Name: "SIGSTOP"})))
			require.NoError(t, s.Send(wire.Frame{Kind: wire.KindCancel}))
		}, wire.ReasonCanceled},
		"over its time":           {func(*testing.T, *channel.Client, *channel.ExecStream) {}, wire.ReasonTimeout},
		"detached, then its time": {func(_ *testing.T, _ *channel.Client, s *channel.ExecStream) { s.Close() }, ""},
		"cut off, then its time":  {func(_ *testing.T, c *channel.Client, _ *channel.ExecStream) { c.Close() }, ""},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := startRunner(t)
			c := s.open()
			require.NoError(t, os.WriteFile(filepath.Join(s.dir, "old"), []byte("old"), 0o600))
			st := start(writeOp("old", 0))
			if strings.Contains(name, "time") {
				st.Timeout = 5 * time.Second
			}
			// A name of its own: runners that share a machine would kill each other's.
			id := strings.NewReplacer(" ", "-", ",", "").Replace(name)
			e := s.beginWrite(c, id, st, "half of it")
			tc.cut(t, c, e)
			if tc.reason != "" {
				require.Equal(t, tc.reason, collect(t, e).ending.Reason)
				only(t, s.dir, "old")
			}
			require.Eventually(t, func() bool {
				names, err := os.ReadDir(s.dir)
				return err == nil && len(names) == 1
			}, 20*time.Second, 10*time.Millisecond)
			got, err := os.ReadFile(filepath.Join(s.dir, "old"))
			require.NoError(t, err)
			require.Equal(t, "old", string(got))
		})
	}
}

// The helper tidies up by itself when it is asked to end, whoever asks.
func TestFileWriteTerminated(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	cmd := exec.Command(os.Args[0], argFile, "write", at("scratch"), "644", at("f"))
	in, err := cmd.StdinPipe()
	require.NoError(t, err)
	var errOut strings.Builder
	cmd.Stderr = &errOut
	require.NoError(t, cmd.Start())
	_, err = in.Write([]byte("half of it"))
	require.NoError(t, err)
	require.Eventually(t, func() bool {
		got, _ := os.ReadFile(at("scratch"))
		return string(got) == "half of it"
	}, 20*time.Second, 5*time.Millisecond)
	require.NoError(t, cmd.Process.Signal(unix.SIGTERM))
	var exit *exec.ExitError
	require.ErrorAs(t, cmd.Wait(), &exit)
	require.Equal(t, 1, exit.ExitCode())
	require.Contains(t, errOut.String(), `"code":"unavailable"`)
	only(t, dir)
}

// The end of the content is the word that it is whole: a cancel that comes with
// it finds the old file or the new one, never a part.
func TestFileWriteCanceledAtItsEnd(t *testing.T) {
	s := startRunner(t)
	c := s.open()
	e := s.beginWrite(c, "x", start(writeOp("f", 0)), "whole")
	require.NoError(t, e.Send(wire.Frame{Kind: wire.KindStdinEnd, Offset: 5}))
	require.NoError(t, e.Send(wire.Frame{Kind: wire.KindCancel}))
	collect(t, e)
	if got, err := os.ReadFile(filepath.Join(s.dir, "f")); err == nil {
		require.Equal(t, "whole", string(got))
		only(t, s.dir, "f")
	} else {
		only(t, s.dir)
	}
}

func TestFileWriteWithoutSpace(t *testing.T) {
	s := startRunner(t)
	full := filepath.Join(s.dir, "full")
	require.NoError(t, os.Mkdir(full, 0o755))
	if err := unix.Mount("none", full, "tmpfs", 0, "size=64k"); err != nil {
		t.Skipf("this machine lets nobody mount a small file system: %v", err)
	}
	t.Cleanup(func() { require.NoError(t, unix.Unmount(full, unix.MNT_DETACH)) })
	require.NoError(t, os.WriteFile(filepath.Join(full, "old"), []byte("old"), 0o600))
	c := s.open()
	st, err := c.Exec(deadline(t), "x", start(writeOp("full/old", 0)), nil)
	require.NoError(t, err)
	defer st.Close()
	for i := range 3 { // within the first window
		require.NoError(t, st.Send(wire.Frame{Kind: wire.KindStdin, Offset: uint64(i) * wire.MaxData, Payload: make([]byte, wire.MaxData)}))
	}
	e := failure(t, collect(t, st))
	require.Equal(t, wire.CodeExhausted, e.Code)
	require.Equal(t, "no_space", e.Reason)
	require.Contains(t, e.Message, "workspace is full")
	only(t, full, "old")
}

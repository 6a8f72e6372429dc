package server_test

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// acquired is a site with one lease, and the directory its sandbox works in.
func acquired(t *testing.T) (s *site, lease *sandboxclient.Lease, dir string) {
	t.Helper()
	s = newSite(t)
	lease, err := s.client(tokenA).Acquire(deadline(t), "test")
	require.NoError(t, err)
	t.Cleanup(func() { _ = lease.Release(deadline(t)) })
	return s, lease, s.provider.Any().Dir()
}

func TestFilesRoundTrip(t *testing.T) {
	_, lease, dir := acquired(t)
	big := make([]byte, 20<<20)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(big) // never fails
	for name, tc := range map[string]struct {
		content    []byte
		mode, want fs.FileMode
	}{
		"20 MB": {big, 0, 0o644}, "empty": {nil, 0, 0o644}, "program": {[]byte("#!/bin/sh\necho it runs\n"), 0o755, 0o755},
	} {
		t.Run(name, func(t *testing.T) {
			sum := sha256.Sum256(tc.content)
			want := sandboxclient.FileInfo{Size: int64(len(tc.content)), SHA256: hex.EncodeToString(sum[:]), Mode: tc.want}
			info, err := lease.Files().Write(deadline(t), "sub/"+name, bytes.NewReader(tc.content), tc.mode)
			require.NoError(t, err)
			require.Equal(t, want, info)
			st, err := os.Stat(filepath.Join(dir, "sub", name))
			require.NoError(t, err)
			require.Equal(t, tc.want, st.Mode())

			got := sha256.New()
			info, err = lease.Files().Read(deadline(t), "sub/"+name, got)
			require.NoError(t, err)
			require.Equal(t, want, info)
			require.Equal(t, sum[:], got.Sum(nil))
		})
	}
	out, err := lease.Command("sub/program").Output(deadline(t))
	require.NoError(t, err)
	require.Equal(t, "it runs\n", string(out))
}

func TestFilesThatCannotBeMoved(t *testing.T) {
	_, lease, dir := acquired(t)
	require.NoError(t, os.Mkdir(filepath.Join(dir, "dir"), 0o755))
	require.NoError(t, unix.Mkfifo(filepath.Join(dir, "fifo"), 0o600))
	files := lease.Files()
	for name, tc := range map[string]struct {
		path  string
		mode  fs.FileMode // not 0: a write
		is    error
		field string
		limit int64
	}{
		"read missing":        {"missing", 0, sandboxclient.ErrNotFound, "program.file.path", 0},
		"read directory":      {"dir", 0, sandboxclient.ErrInvalid, "program.file.path", 0},
		"read FIFO":           {"fifo", 0, sandboxclient.ErrInvalid, "program.file.path", 0},
		"read nothing":        {"", 0, sandboxclient.ErrInvalid, "program.file.path", 4096},
		"read long path":      {strings.Repeat("x", 4097), 0, sandboxclient.ErrInvalid, "program.file.path", 4096},
		"read zero byte":      {"a\x00b", 0, sandboxclient.ErrInvalid, "program.file.path", 0},
		"write directory":     {"dir", 0o600, sandboxclient.ErrInvalid, "program.file.path", 0},
		"write zero byte":     {"a\x00b", 0o600, sandboxclient.ErrInvalid, "program.file.path", 0},
		"write setuid":        {"x", 0o600 | fs.ModeSetuid, sandboxclient.ErrInvalid, "program.file.mode", 0o777},
		"write the workspace": {".", 0o600, sandboxclient.ErrInvalid, "program.file.path", 0},
	} {
		t.Run(name, func(t *testing.T) {
			var err error
			if tc.mode == 0 {
				_, err = files.Read(deadline(t), tc.path, io.Discard)
			} else {
				_, err = files.Write(deadline(t), tc.path, strings.NewReader("x"), tc.mode)
			}
			require.ErrorIs(t, err, tc.is)
			e := wire.AsError(err)
			require.Equal(t, tc.field, e.Field)
			require.Equal(t, tc.limit, e.Limit)
			require.NotEmpty(t, e.RequestID)
			require.False(t, errors.As(err, new(*sandboxclient.ExitError)))
		})
	}
}

// A write that its owner gives up leaves the old file, and nothing beside it.
func TestFilesWriteGivenUp(t *testing.T) {
	broken := errors.New("disk on fire")
	for name, tc := range map[string]struct {
		giveUp func(cancel func(), w *io.PipeWriter)
		is     error
	}{
		"canceled": {func(cancel func(), _ *io.PipeWriter) { cancel() }, context.Canceled},
		// An end that came of the cancel is not the content's.
		"canceled, with the reader": {func(cancel func(), w *io.PipeWriter) {
			cancel()
			_ = w.Close()
		}, context.Canceled},
		"the reader fails": {func(_ func(), w *io.PipeWriter) { _ = w.CloseWithError(broken) }, broken},
	} {
		t.Run(name, func(t *testing.T) {
			_, lease, dir := acquired(t)
			require.NoError(t, os.WriteFile(filepath.Join(dir, "f"), []byte("old"), 0o600))
			ctx, cancel := context.WithCancel(deadline(t))
			defer cancel()
			r, w := io.Pipe()
			defer func() { _ = w.Close() }()
			failed := make(chan error, 1)
			go func() {
				_, err := lease.Files().Write(ctx, "f", r, 0)
				failed <- err
			}()
			_, err := w.Write(make([]byte, 300_000))
			require.NoError(t, err)
			eventually(t, "the new file is being written", func() bool { return len(names(t, dir)) == 2 })
			tc.giveUp(cancel, w)
			require.ErrorIs(t, <-failed, tc.is)
			require.Equal(t, []string{"f"}, names(t, dir))
			got, err := os.ReadFile(filepath.Join(dir, "f"))
			require.NoError(t, err)
			require.Equal(t, "old", string(got))
		})
	}
}

// A write whose client is gone for good ends with its time, and leaves nothing.
func TestFilesWriteDetached(t *testing.T) {
	cfg := pool()
	cfg.MaxTimeout = 3 * time.Second
	s := newSite(t, cfg)
	conn := s.dial(tokenA)
	conn.request(1, wire.Request{Op: wire.OpAcquire, Pool: "test"}, "")
	var res wire.Response
	require.NoError(t, wire.Unmarshal(wire.KindResponse, conn.until(wire.KindResponse).Payload, &res))
	conn.request(2, wire.Request{Op: wire.OpExec, Lease: res.Lease, Program: &wire.Program{
		Stdin: true, File: &wire.FileOp{Op: wire.FileWrite, Path: "f"},
	}}, "")
	conn.until(wire.KindWindow)
	conn.send(wire.Frame{Kind: wire.KindStdin, Stream: 2, Payload: []byte("half")})
	dir := s.provider.Any().Dir()
	eventually(t, "the file is being written", func() bool { return len(names(t, dir)) == 1 })
	_ = conn.Close()
	eventually(t, "nothing is left", func() bool { return len(names(t, dir)) == 0 })
}

// names lists a directory.
func names(t *testing.T, dir string) []string {
	t.Helper()
	entries, err := os.ReadDir(dir)
	require.NoError(t, err)
	var out []string
	for _, e := range entries {
		out = append(out, e.Name())
	}
	return out
}

func TestFilesWrittenAtOnce(t *testing.T) {
	_, lease, dir := acquired(t)
	const writers, size = 8, 1 << 20
	var wg sync.WaitGroup
	for i := range writers {
		wg.Go(func() {
			_, err := lease.Files().Write(deadline(t), "f", bytes.NewReader(bytes.Repeat([]byte{byte(i)}, size)), 0)
			require.NoError(t, err)
		})
	}
	wg.Wait()
	got, err := os.ReadFile(filepath.Join(dir, "f"))
	require.NoError(t, err)
	require.Len(t, got, size)
	require.Equal(t, bytes.Repeat(got[:1], size), got, "one whole version")
	require.Equal(t, []string{"f"}, names(t, dir))
}

func TestFilesSurviveACutChannel(t *testing.T) {
	s, lease, dir := acquired(t)
	r, w := io.Pipe()
	written := make(chan error, 1)
	go func() {
		_, err := lease.Files().Write(deadline(t), "f", r, 0)
		written <- err
	}()
	content := make([]byte, 2<<20)
	for i := 0; i < len(content); i += 1 << 19 {
		_, err := w.Write(content[i : i+1<<19])
		require.NoError(t, err)
		s.provider.Any().Cut()
	}
	require.NoError(t, w.Close())
	require.NoError(t, <-written)
	got, err := os.ReadFile(filepath.Join(dir, "f"))
	require.NoError(t, err)
	require.Equal(t, content, got)
}

func TestFilesOfAnotherTenant(t *testing.T) {
	s, lease, dir := acquired(t)
	require.NoError(t, s.provider.Any().Touch("f"))
	files := s.client(tokenB).Lease(lease.Handle()).Files()
	_, err := files.Read(deadline(t), "f", nil)
	require.ErrorIs(t, err, sandboxclient.ErrNotFound)
	require.Empty(t, wire.AsError(err).Field, "it is the lease that does not exist")
	_, err = files.Write(deadline(t), "g", nil, 0)
	require.ErrorIs(t, err, sandboxclient.ErrNotFound)
	require.Equal(t, []string{"f"}, names(t, dir))
}

// Of a file the log has the operation and the size, and nothing else.
func TestFilesAreNotLogged(t *testing.T) {
	const secret = "p4ssw0rd-in-the-file"
	s, lease, _ := acquired(t)
	files := lease.Files()
	_, err := files.Write(deadline(t), secret+"-path", strings.NewReader(secret), 0)
	require.NoError(t, err)
	_, err = files.Read(deadline(t), secret+"-path", nil)
	require.NoError(t, err)
	_, err = files.Read(deadline(t), secret+"\x00", nil)
	require.ErrorIs(t, err, sandboxclient.ErrInvalid)
	_, err = files.Read(deadline(t), secret+"/missing", nil)
	require.ErrorIs(t, err, sandboxclient.ErrNotFound)
	require.NotContains(t, s.log.String(), secret)
	require.Contains(t, s.log.String(), `"file":"write"`)
	require.Contains(t, s.log.String(), `"file":"read"`)
	require.Contains(t, s.log.String(), `"stdin_bytes":20`)
}

//go:build linux

package local_test

import (
	"archive/tar"
	"bytes"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-containerregistry/pkg/name"
	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/stretchr/testify/require"

	"github.com/sandbox-broker/sandbox-broker/broker"
	"github.com/sandbox-broker/sandbox-broker/broker/local"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// program builds a static program that says hello and where it is.
func program(t *testing.T) []byte {
	t.Helper()
	dir := t.TempDir()
	source := filepath.Join(dir, "hello.go")
	require.NoError(t, os.WriteFile(source, []byte(`package main

import "os"

func main() {
	_, err := os.Stat("/usr/bin/env")
	println("hello", os.Getenv("PATH"), err != nil)
}
`), 0o600))
	build := exec.Command("go", "build", "-ldflags=-s -w", "-o", filepath.Join(dir, "hello"), source)
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	out, err := build.CombinedOutput()
	require.NoError(t, err, string(out))
	b, err := os.ReadFile(filepath.Join(dir, "hello"))
	require.NoError(t, err)
	return b
}

// image is one layer with the program and a link out of the image.
func image(t *testing.T, hello []byte) v1.Image {
	t.Helper()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	for _, h := range []*tar.Header{
		{Name: "app/", Typeflag: tar.TypeDir, Mode: 0o755},
		{Name: "app/hello", Typeflag: tar.TypeReg, Mode: 0o755, Size: int64(len(hello))},
		{Name: "app/link", Typeflag: tar.TypeSymlink, Linkname: "/etc/shadow"},
		{Name: "app/device", Typeflag: tar.TypeBlock, Mode: 0o666},
	} {
		require.NoError(t, w.WriteHeader(h))
		if h.Size > 0 {
			_, err := w.Write(hello)
			require.NoError(t, err)
		}
	}
	require.NoError(t, w.Close())
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil })
	require.NoError(t, err)
	img, err := mutate.AppendLayers(empty.Image, layer)
	require.NoError(t, err)
	img, err = mutate.Config(img, v1.Config{Env: []string{"PATH=/app"}})
	require.NoError(t, err)
	return img
}

// ociArchive packs an image as an OCI layout in a tar file.
func ociArchive(t *testing.T, img v1.Image, path string) {
	t.Helper()
	dir := t.TempDir()
	l, err := layout.Write(dir, empty.Index)
	require.NoError(t, err)
	require.NoError(t, l.AppendImage(img))
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	require.NoError(t, w.AddFS(os.DirFS(dir)))
	require.NoError(t, w.Close())
	require.NoError(t, os.WriteFile(path, b.Bytes(), 0o600))
}

func TestRootFileSystems(t *testing.T) {
	needRunsc(t)
	hello := program(t)
	img := image(t, hello)
	dir := t.TempDir()
	require.NoError(t, os.Chmod(dir, 0o755))

	folder := filepath.Join(dir, "folder")
	require.NoError(t, os.MkdirAll(filepath.Join(folder, "app"), 0o755))
	require.NoError(t, os.WriteFile(filepath.Join(folder, "app", "hello"), hello, 0o755))
	docker := filepath.Join(dir, "docker.tar")
	tag, err := name.NewTag("test/hello:1")
	require.NoError(t, err)
	require.NoError(t, tarball.WriteToFile(docker, tag, img))
	oci := filepath.Join(dir, "oci.tar")
	ociArchive(t, img, oci)

	for kind, c := range map[string]struct{ rootFS, path string }{
		"folder": {folder, "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"},
		"docker": {docker, "/app"},
		"OCI":    {oci, "/app"},
	} {
		t.Run(kind, func(t *testing.T) {
			s := newSite(t, options(t, local.RuntimeRunsc, local.Pool{Name: "test", RootFS: c.rootFS}))
			res, err := s.Run(within(t, time.Minute), sandboxclient.Code{Pool: "test", Argv: []string{"/app/hello"}})
			require.NoError(t, err)
			require.Equal(t, "hello "+c.path+" true\n", string(res.Stderr), "the host's programs are not in it")
		})
	}

	t.Run("without the interpreter", func(t *testing.T) {
		s := newSite(t, options(t, local.RuntimeRunsc, local.Pool{Name: "test", RootFS: folder}),
			broker.PoolConfig{Name: "test", Stock: 1, Languages: []string{"python"}})
		_, err := s.Run(within(t, time.Minute), sandboxclient.Code{Pool: "test", Language: "python", Source: "1"})
		require.ErrorIs(t, err, sandboxclient.ErrNotReady)
		require.ErrorContains(t, err, "no interpreter for python")
	})
}

func TestBrokenRootFileSystems(t *testing.T) {
	dir := t.TempDir()
	broken := filepath.Join(dir, "broken.tar")
	require.NoError(t, os.WriteFile(broken, bytes.Repeat([]byte("no tar at all "), 100), 0o600))
	cut := filepath.Join(dir, "cut.tar")
	needRunsc(t)
	tag, err := name.NewTag("test/hello:1")
	require.NoError(t, err)
	require.NoError(t, tarball.WriteToFile(cut, tag, image(t, bytes.Repeat([]byte("x"), 1<<20))))
	st, err := os.Stat(cut)
	require.NoError(t, err)
	require.NoError(t, os.Truncate(cut, st.Size()/2))
	for _, path := range []string{broken, cut, filepath.Join(dir, "missing.tar")} {
		_, err := local.New(t.Context(), options(t, local.RuntimeRunsc, local.Pool{Name: "p", RootFS: path}))
		require.ErrorContains(t, err, `pool "p": rootFS: `)
		require.ErrorContains(t, err, path)
		require.NotContains(t, err.Error(), "\n", "one line")
	}
}

// An archive may say anything; nothing of it lands outside its folder.
func TestArchiveStaysInItsFolder(t *testing.T) {
	needRunsc(t)
	dir := t.TempDir()
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	require.NoError(t, w.WriteHeader(&tar.Header{Name: "out", Typeflag: tar.TypeSymlink, Linkname: dir}))
	require.NoError(t, w.WriteHeader(&tar.Header{Name: "out/evil", Typeflag: tar.TypeReg, Mode: 0o644, Size: 1}))
	_, err := w.Write([]byte("x"))
	require.NoError(t, err)
	require.NoError(t, w.Close())
	layer, err := tarball.LayerFromOpener(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil })
	require.NoError(t, err)
	img, err := mutate.AppendLayers(empty.Image, layer)
	require.NoError(t, err)
	archive := filepath.Join(dir, "evil.tar")
	tag, err := name.NewTag("test/evil:1")
	require.NoError(t, err)
	require.NoError(t, tarball.WriteToFile(archive, tag, img))

	p, err := local.New(t.Context(), options(t, local.RuntimeRunsc, local.Pool{Name: "p", RootFS: archive}))
	if err == nil {
		require.NoError(t, p.Close(within(t, time.Minute)))
	}
	require.NoFileExists(t, filepath.Join(dir, "evil"))
}

func TestPoolsThatAskForTooMuch(t *testing.T) {
	for what, pool := range map[string]local.Pool{
		"a root file system of processes": {Name: "test", RootFS: "/"},
		"a processor limit of processes":  {Name: "test", Limits: local.Limits{CPUs: 1}},
	} {
		t.Run(what, func(t *testing.T) {
			p := open(t, options(t, local.RuntimeProcess, pool))
			_, err := p.Take(t.Context(), broker.TakeRequest{WarmPool: "test", Until: time.Now().Add(time.Minute)})
			require.ErrorIs(t, err, wire.ErrNotReady)
			require.Equal(t, "configuration", wire.AsError(err).Reason)
			require.True(t, strings.Contains(err.Error(), "process cannot"), err.Error())
		})
	}
}

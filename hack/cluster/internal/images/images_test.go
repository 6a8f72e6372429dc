package images

import (
	"archive/tar"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"testing"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/stretchr/testify/require"

	"github.com/sandbox-broker/sandbox-broker/hack/cluster/internal/plan"
)

// read returns the files in an archive.
func read(t *testing.T, path string) map[string][]byte {
	t.Helper()
	f, err := os.Open(path)
	require.NoError(t, err)
	defer f.Close()
	files := map[string][]byte{}
	r := tar.NewReader(f)
	for {
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return files
		}
		require.NoError(t, err)
		files[h.Name], err = io.ReadAll(r)
		require.NoError(t, err)
	}
}

func build(t *testing.T, content string) Image {
	t.Helper()
	dir := t.TempDir()
	binary := filepath.Join(dir, "sandbox-runner")
	require.NoError(t, os.WriteFile(binary, []byte(content), 0o755))
	img, err := fromBinary(plan.RunnerImage, binary, filepath.Join(dir, "out", "image.tar"))
	require.NoError(t, err)
	return img
}

func TestBinaryImage(t *testing.T) {
	img := build(t, "program")
	files := read(t, img.Archive)
	require.Contains(t, files, "oci-layout")
	blob := func(digest v1.Hash, into any) []byte {
		content, ok := files["blobs/sha256/"+digest.Hex]
		require.True(t, ok, digest)
		if into != nil {
			require.NoError(t, json.Unmarshal(content, into))
		}
		return content
	}
	var index v1.IndexManifest
	require.NoError(t, json.Unmarshal(files["index.json"], &index))
	require.Len(t, index.Manifests, 1)
	require.Equal(t, plan.RunnerImage, index.Manifests[0].Annotations[nameAnnotation])
	require.Equal(t, img.Digest, index.Manifests[0].Digest.String())

	var manifest v1.Manifest
	blob(index.Manifests[0].Digest, &manifest)
	var config v1.ConfigFile
	blob(manifest.Config.Digest, &config)
	require.Equal(t, "65532", config.Config.User, "numeric: kubelet checks it")
	require.Equal(t, []string{"/sandbox-runner"}, config.Config.Entrypoint)
	require.Equal(t, "linux", config.OS)

	layer := filepath.Join(t.TempDir(), "layer.tar")
	require.NoError(t, os.WriteFile(layer, blob(manifest.Layers[0].Digest, nil), 0o644))
	require.Equal(t, map[string][]byte{"sandbox-runner": []byte("program")}, read(t, layer))
}

func TestDigestDependsOnContentAlone(t *testing.T) {
	require.Equal(t, build(t, "one").Digest, build(t, "one").Digest)
	require.NotEqual(t, build(t, "one").Digest, build(t, "two").Digest)
}

func TestRememberedArchive(t *testing.T) {
	img := build(t, "program")
	_, known := recall(img.Archive)
	require.False(t, known)
	require.NoError(t, remember(img))
	got, known := recall(img.Archive)
	require.True(t, known)
	require.Equal(t, img, got)
	require.NoError(t, os.Remove(img.Archive))
	_, known = recall(img.Archive)
	require.False(t, known, "the archive is gone")
}

func TestParseListing(t *testing.T) {
	got := parseListing(`REF TYPE DIGEST SIZE PLATFORMS LABELS
localhost/a:dev application/vnd.oci.image.manifest.v1+json sha256:aa 1.0 MiB linux/amd64 io.cri-containerd.image=managed
sha256:bb application/vnd.oci.image.manifest.v1+json sha256:aa 1.0 MiB linux/amd64 io.cri-containerd.image=managed
`)
	require.Equal(t, map[string]string{"localhost/a:dev": "sha256:aa", "sha256:bb": "sha256:aa"}, got)
}

func TestAliasesOfWhatAnImageWas(t *testing.T) {
	listing := map[string]string{
		"localhost/a:dev": "sha256:aa", "sha256:config-a": "sha256:aa",
		"localhost/b:dev": "sha256:bb", "sha256:config-b": "sha256:bb",
	}
	require.Equal(t, []string{"sha256:config-a"}, aliases(listing, "localhost/a:dev"))
	require.Empty(t, aliases(listing, "localhost/new:dev"))
}

// Package images makes the cluster's container images without Docker and
// without a registry: each is put together here, written as an OCI archive, and
// imported straight into containerd.
//
// An image's digest depends on its content alone: times and owners in the
// archives are fixed. So a rebuild that changed nothing is recognised, and
// nothing is imported or restarted for it.
package images

import (
	"archive/tar"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/types"

	"github.com/sandbox-broker/sandbox-broker/hack/cluster/internal/plan"
)

// nameAnnotation tells containerd's import what to call the image.
const nameAnnotation = "io.containerd.image.name"

// Image is an image as an archive on disk.
type Image struct {
	// Name is its reference, Archive the file, Digest that of its manifest.
	Name, Archive, Digest string
}

// describe says how an image's containers start unless the pod says otherwise.
func describe(entrypoint []string, env ...string) v1.Config {
	return v1.Config{
		User:       strconv.Itoa(plan.NonRootUser),
		Env:        append([]string{"PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"}, env...),
		Entrypoint: entrypoint,
	}
}

// fromBinary makes the image that holds one static program at /name.
func fromBinary(ref, binary, archive string) (Image, error) {
	program, err := os.ReadFile(binary)
	if err != nil {
		return Image{}, err
	}
	name := filepath.Base(binary)
	layer, err := layerOf(tar.Header{Name: name, Mode: 0o755, Typeflag: tar.TypeReg}, program)
	if err != nil {
		return Image{}, err
	}
	return write(ref, archive, describe([]string{"/" + name}), layer)
}

// layerOf is a layer of a single file.
func layerOf(header tar.Header, content []byte) (v1.Layer, error) {
	var b bytes.Buffer
	w := tar.NewWriter(&b)
	header.Size = int64(len(content))
	if err := w.WriteHeader(&header); err != nil {
		return nil, err
	}
	if _, err := w.Write(content); err != nil {
		return nil, err
	}
	if err := w.Close(); err != nil {
		return nil, err
	}
	return newLayer(func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(b.Bytes())), nil })
}

// layer is an uncompressed layer. The library only makes compressed ones, which
// takes seconds for a large one and is of no use within one machine.
type layer struct {
	open   func() (io.ReadCloser, error)
	digest v1.Hash
	size   int64
}

func newLayer(open func() (io.ReadCloser, error)) (v1.Layer, error) {
	content, err := open()
	if err != nil {
		return nil, err
	}
	defer content.Close()
	digest, size, err := v1.SHA256(content)
	return layer{open, digest, size}, err
}

// Without compression, what is stored and what it unpacks to are the same.
func (l layer) Digest() (v1.Hash, error)             { return l.digest, nil }
func (l layer) DiffID() (v1.Hash, error)             { return l.digest, nil }
func (l layer) Compressed() (io.ReadCloser, error)   { return l.open() }
func (l layer) Uncompressed() (io.ReadCloser, error) { return l.open() }
func (l layer) Size() (int64, error)                 { return l.size, nil }
func (l layer) MediaType() (types.MediaType, error)  { return types.OCIUncompressedLayer, nil }

// write puts the image together and writes its archive, whole or not at all.
func write(ref, archive string, config v1.Config, layers ...v1.Layer) (Image, error) {
	img, err := assemble(config, layers...)
	if err != nil {
		return Image{}, fmt.Errorf("putting %s together: %w", ref, err)
	}
	digest, err := img.Digest()
	if err != nil {
		return Image{}, err
	}
	if err := os.MkdirAll(filepath.Dir(archive), 0o755); err != nil {
		return Image{}, err
	}
	if err := writeArchive(ref, img, archive+".new"); err != nil {
		return Image{}, fmt.Errorf("writing %s: %w", archive, err)
	}
	if err := os.Rename(archive+".new", archive); err != nil {
		return Image{}, err
	}
	return Image{Name: ref, Archive: archive, Digest: digest.String()}, nil
}

func assemble(config v1.Config, layers ...v1.Layer) (v1.Image, error) {
	img := mutate.MediaType(empty.Image, types.OCIManifestSchema1)
	img = mutate.ConfigMediaType(img, types.OCIConfigJSON)
	img, err := mutate.AppendLayers(img, layers...)
	if err != nil {
		return nil, err
	}
	file, err := img.ConfigFile()
	if err != nil {
		return nil, err
	}
	file = file.DeepCopy()
	file.OS, file.Architecture, file.Config = "linux", runtime.GOARCH, config
	return mutate.ConfigFile(img, file)
}

// writeArchive writes the image as a tar of an OCI layout.
func writeArchive(ref string, img v1.Image, path string) error {
	dir, err := os.MkdirTemp(filepath.Dir(path), "layout-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	l, err := layout.Write(dir, empty.Index)
	if err != nil {
		return err
	}
	if err := l.AppendImage(img, layout.WithAnnotations(map[string]string{nameAnnotation: ref})); err != nil {
		return err
	}
	return tarFolder(dir, path)
}

func tarFolder(dir, path string) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	w := tar.NewWriter(f)
	err = fs.WalkDir(os.DirFS(dir), ".", func(name string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		return tarFile(w, dir, name)
	})
	return errors.Join(err, w.Close(), f.Close())
}

func tarFile(w *tar.Writer, dir, name string) error {
	f, err := os.Open(filepath.Join(dir, name))
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if err := w.WriteHeader(&tar.Header{Name: name, Mode: 0o644, Size: info.Size()}); err != nil {
		return err
	}
	_, err = io.Copy(w, f)
	return err
}

// remember and recall keep what is known about an archive beside it, so that a
// large one need not be read again.
func remember(img Image) error {
	text, err := json.Marshal(img)
	if err != nil {
		return err
	}
	return os.WriteFile(img.Archive+".json", text, 0o644)
}

func recall(archive string) (Image, bool) {
	text, err := os.ReadFile(archive + ".json")
	if err != nil {
		return Image{}, false
	}
	var img Image
	if json.Unmarshal(text, &img) != nil || img.Archive != archive {
		return Image{}, false
	}
	_, err = os.Stat(archive)
	return img, err == nil
}

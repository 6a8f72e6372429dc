//go:build linux

package local

import (
	"archive/tar"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
)

// unpackImage unpacks the one image of an archive, as `docker save` or an OCI
// layout in a tar file, into a folder below dir. It is done at each start: what
// is there could be another archive's of the same name.
func unpackImage(ctx context.Context, archive, dir string) (rootFS, error) {
	fail := func(err error) (rootFS, error) {
		return rootFS{}, fmt.Errorf("rootFS: unpacking %s: %w", archive, err)
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fail(err)
	}
	into, err := os.MkdirTemp(dir, "image-")
	if err != nil {
		return fail(err)
	}
	img, err := openImage(ctx, archive, filepath.Join(into, "layout"))
	if err != nil {
		return fail(err)
	}
	r := rootFS{dir: filepath.Join(into, "root")}
	if err := os.Mkdir(r.dir, 0o755); err != nil {
		return fail(err)
	}
	flat := mutate.Extract(img)
	defer func() { _ = flat.Close() }()
	if err := untar(ctx, flat, r.dir); err != nil {
		return fail(errors.Join(err, os.RemoveAll(into)))
	}
	if c, err := img.ConfigFile(); err == nil {
		for _, v := range c.Config.Env {
			if path, ok := strings.CutPrefix(v, "PATH="); ok {
				r.path = path
			}
		}
	}
	// The sandbox's user is another one than the owner.
	return r, errors.Join(os.Chmod(into, 0o755), os.RemoveAll(filepath.Join(into, "layout")))
}

// openImage reads a docker archive, or unpacks an OCI one into dir.
func openImage(ctx context.Context, archive, dir string) (v1.Image, error) {
	img, dockerErr := tarball.ImageFromPath(archive, nil)
	if dockerErr == nil {
		return img, nil
	}
	f, err := os.Open(archive)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }()
	if err := os.Mkdir(dir, 0o755); err != nil {
		return nil, err
	}
	if err := untar(ctx, f, dir); err != nil {
		return nil, fmt.Errorf("it is neither a docker archive (%w) nor an OCI one (%w)", dockerErr, err)
	}
	index, err := layout.ImageIndexFromPath(dir)
	if err != nil {
		return nil, fmt.Errorf("it is neither a docker archive (%w) nor an OCI one (%w)", dockerErr, err)
	}
	manifest, err := index.IndexManifest()
	if err != nil {
		return nil, err
	}
	if len(manifest.Manifests) != 1 {
		return nil, fmt.Errorf("it holds %d images; exactly one is needed", len(manifest.Manifests))
	}
	return index.Image(manifest.Manifests[0].Digest)
}

// maxEntries bounds the files of an archive, and maxUnpacked their bytes together.
const (
	maxEntries  = 1 << 20
	maxUnpacked = 16 << 30
)

// untar unpacks files, folders and links below dir and nowhere else; devices are
// left out, owners are not kept.
func untar(ctx context.Context, from io.Reader, dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer func() { _ = root.Close() }()
	r := tar.NewReader(from)
	left := int64(maxUnpacked)
	for range maxEntries {
		if err := ctx.Err(); err != nil {
			return err
		}
		h, err := r.Next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if left -= h.Size; h.Size < 0 || left < 0 {
			return fmt.Errorf("it has more than %d bytes", int64(maxUnpacked))
		}
		if err := unpackEntry(root, h, r); err != nil {
			return fmt.Errorf("%s: %w", h.Name, err)
		}
	}
	return fmt.Errorf("it has more than %d files", maxEntries)
}

func unpackEntry(root *os.Root, h *tar.Header, r io.Reader) error {
	name := strings.TrimPrefix(filepath.Clean("/"+h.Name), "/")
	if name == "" {
		return nil
	}
	if err := root.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return err
	}
	mode := fs.FileMode(h.Mode).Perm()
	switch h.Typeflag {
	case tar.TypeDir:
		if err := root.Mkdir(name, mode|0o700); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
		return nil
	case tar.TypeReg:
		f, err := root.OpenFile(name, os.O_CREATE|os.O_EXCL|os.O_WRONLY, mode|0o600)
		if err != nil {
			return err
		}
		_, err = io.Copy(f, r)
		return errors.Join(err, f.Close())
	case tar.TypeSymlink:
		return root.Symlink(h.Linkname, name)
	case tar.TypeLink:
		return root.Link(strings.TrimPrefix(filepath.Clean("/"+h.Linkname), "/"), name)
	}
	return nil
}

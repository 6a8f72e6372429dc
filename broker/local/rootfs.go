//go:build linux

package local

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// rootFS is the root of a pool's sandboxes. Several sandboxes share it,
// read-only.
type rootFS struct {
	dir    string
	mounts []string // folders of this machine that are seen at the same place
	path   string   // PATH in it; empty: the usual one
}

// hostFolders hold this machine's programs. Those that are links on a merged
// /usr are links in the sandbox too.
var hostFolders = []string{"/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32"}

// hostFiles are what programs need of /etc: how the loader finds libraries, and
// which alternative of a program is meant. Nothing of it is about this machine's
// users, network or secrets.
var hostFiles = []string{"/etc/ld.so.cache", "/etc/ld.so.conf", "/etc/ld.so.conf.d", "/etc/alternatives"}

// etcFiles are what a sandbox's /etc says itself.
var etcFiles = map[string]string{
	"passwd":        "root:x:0:0:root:/:/bin/sh\nsandbox:x:65532:65532:sandbox:" + homePath + ":/bin/sh\n",
	"group":         "root:x:0:\nsandbox:x:65532:\n",
	"hosts":         "127.0.0.1 localhost\n::1 localhost\n",
	"hostname":      "sandbox\n",
	"nsswitch.conf": "passwd: files\ngroup: files\nhosts: files dns\n",
}

// mountPoints are made so that they exist in a root that is read-only.
var mountPoints = []string{"proc", "dev", "sys", "tmp", "workspace", "home/sandbox", "opt/sandbox-runner"}

// hostRoot makes the read-only view of this machine's programs in dir.
func hostRoot(dir string) (rootFS, error) {
	r := rootFS{dir: dir}
	err := os.RemoveAll(dir) // an earlier start's, of a machine that has changed since
	for _, m := range append([]string{"etc"}, mountPoints...) {
		err = errors.Join(err, os.MkdirAll(filepath.Join(dir, m), 0o755))
	}
	for name, text := range etcFiles {
		err = errors.Join(err, os.WriteFile(filepath.Join(dir, "etc", name), []byte(text), 0o644))
	}
	for _, f := range hostFolders {
		mount, e := mirror(f, dir)
		if mount {
			r.mounts = append(r.mounts, f)
		}
		err = errors.Join(err, e)
	}
	for _, f := range hostFiles {
		err = errors.Join(err, copyTree(f, filepath.Join(dir, f)))
	}
	// The sandbox's user is another one than the owner.
	err = errors.Join(err, os.Chmod(dir, 0o755))
	if err != nil {
		return r, fmt.Errorf("making the view of this machine's programs: %w", err)
	}
	return r, nil
}

// mirror makes a folder's place below dir: a link if it is one, else a mount
// point. One that this machine lacks is left out.
func mirror(folder, dir string) (mount bool, err error) {
	st, err := os.Lstat(folder)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return false, nil
	case err != nil:
		return false, err
	case st.Mode()&fs.ModeSymlink != 0:
		to, err := os.Readlink(folder)
		if err != nil {
			return false, err
		}
		return false, os.Symlink(to, filepath.Join(dir, folder))
	}
	return true, os.MkdirAll(filepath.Join(dir, folder), 0o755)
}

// copyTree copies a file, or a folder with the files and links right in it; what
// does not exist is left out.
func copyTree(from, to string) error {
	st, err := os.Lstat(from)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case err != nil:
		return err
	case st.Mode()&fs.ModeSymlink != 0:
		target, err := os.Readlink(from)
		if err != nil {
			return err
		}
		return os.Symlink(target, to)
	case st.IsDir():
		if err := os.Mkdir(to, 0o755); err != nil {
			return err
		}
		entries, err := os.ReadDir(from)
		for _, e := range entries {
			if !e.IsDir() {
				err = errors.Join(err, copyTree(filepath.Join(from, e.Name()), filepath.Join(to, e.Name())))
			}
		}
		return err
	case st.Mode().IsRegular():
		text, err := os.ReadFile(from)
		if err != nil {
			return err
		}
		return os.WriteFile(to, text, 0o644)
	}
	return nil
}

// givenRoot is a folder (gVisor makes the mount points that it lacks), or an archive that is unpacked below state.
func givenRoot(ctx context.Context, path, state string) (rootFS, error) {
	path, err := filepath.Abs(path)
	if err != nil {
		return rootFS{}, fmt.Errorf("rootFS: %w", err)
	}
	st, err := os.Stat(path)
	if err != nil {
		return rootFS{}, fmt.Errorf("rootFS: %w", err)
	}
	if st.IsDir() {
		return rootFS{dir: path}, nil
	}
	return unpackImage(ctx, path, filepath.Join(state, imagesDir))
}

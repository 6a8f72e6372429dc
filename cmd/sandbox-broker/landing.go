package main

import (
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// notForOthers are the permissions that a file from a sandbox gets from no sandbox.
const notForOthers = 0o022

// landing is a local file that is written beside its place, and moved there when it
// is whole.
type landing struct {
	root    *os.Root // the directory; nothing leads out of it
	file    *os.File
	scratch string // the file's name until then, empty afterwards
	name    string
}

// newLanding makes the file for dst. In a directory it will be called like its
// source. What must not be replaced is refused here already.
func newLanding(dst, source string) (*landing, error) {
	dir, name := filepath.Split(dst)
	if st, err := os.Stat(dst); err == nil && st.IsDir() {
		dir, name = dst, source
	}
	switch {
	case name == "":
		return nil, fmt.Errorf("%s is no directory", dst)
	case name == "." || name == ".." || name == "/":
		return nil, errors.New("SRC has no name that a file here could have: name the file in DST")
	case dir == "":
		dir = "."
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	l := &landing{root: root, name: name, scratch: ".sandbox-cp-" + rand.Text()}
	if err := l.open(filepath.Join(dir, name)); err != nil {
		_ = root.Close()
		return nil, err
	}
	return l, nil
}

// open makes the file. full is what to call it in errors.
func (l *landing) open(full string) error {
	st, err := l.root.Lstat(l.name)
	switch {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return err
	case st.Mode()&fs.ModeSymlink != 0:
		return fmt.Errorf("%s is a symbolic link, which is not followed: name the file itself", full)
	case st.IsDir():
		return fmt.Errorf("%s is a directory, and a file would take its place", full)
	case !st.Mode().IsRegular():
		return fmt.Errorf("%s is no regular file; - is standard output", full)
	}
	l.file, err = l.root.OpenFile(l.scratch, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	return err
}

// commit gives the file its permissions and moves it to its place.
func (l *landing) commit(mode fs.FileMode) error {
	if err := errors.Join(l.file.Chmod(mode.Perm()&^notForOthers), l.file.Close()); err != nil {
		return err
	}
	if err := l.root.Rename(l.scratch, l.name); err != nil {
		return err
	}
	l.scratch = ""
	return nil
}

// close lets go of everything, and removes a file that is not in its place.
func (l *landing) close() {
	_ = l.file.Close() // commit may have closed it
	if l.scratch != "" {
		_ = l.root.Remove(l.scratch)
	}
	_ = l.root.Close()
}

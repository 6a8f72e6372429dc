package runner

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"sync"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// scratchFile is a file that is being written beside the one it is to replace.
type scratchFile struct {
	file       *os.File
	path       string // its own
	targetPath string

	mu   sync.Mutex // guards over, and is held while the file is renamed or removed
	over bool       // it is in its place, or removed
}

// createScratch makes the file, and the directories on its way. What could not be
// replaced in the end is refused before anything is made.
func createScratch(path, target string) (*scratchFile, error) {
	dir, name := splitPath(target)
	st, err := os.Lstat(target)
	switch {
	case name == "" || name == "." || name == ".." || err == nil && st.IsDir():
		return nil, wire.Invalid(wire.FieldFilePath, 0, "the path names a directory, not a file")
	case err != nil && !errors.Is(err, fs.ErrNotExist):
		return nil, fileError("looking at the path", err)
	}
	if dir != "" {
		if err := os.MkdirAll(dir, dirMode); err != nil {
			return nil, fileError("making the file's directory", err)
		}
	}
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_EXCL, 0o600)
	if err != nil {
		return nil, fileError("making the file", err)
	}
	return &scratchFile{file: f, path: path, targetPath: target}, nil
}

// fill writes all of in to the file and puts it in its place.
func (s *scratchFile) fill(in io.Reader, mode fs.FileMode) (wire.FileReport, error) {
	r, err := move(s.file, in)
	// Not by open: the umask would take bits away.
	err = errors.Join(err, s.file.Chmod(mode), s.file.Close())
	if err != nil {
		return r, fileError("writing the file", err)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.over {
		return r, wire.Errorf(wire.CodeUnavailable, "the file was given up")
	}
	if err := os.Rename(s.path, s.targetPath); err != nil {
		return r, fileError("putting the file in its place", err)
	}
	s.over = true
	return r, nil
}

// drop removes the file unless it is in its place; from then on it stays out of it.
func (s *scratchFile) drop() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.over {
		s.over = true
		_ = os.Remove(s.path) // a program may have removed it
	}
}

package runner

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

const (
	// fileBuffer is how much of a file is moved at once, in bytes.
	fileBuffer = 256 << 10
	// dirMode is the mode of directories made for a file, less the umask.
	dirMode = 0o755
	// scratchPrefix begins the names of files that are being written. The exec's ID
	// follows.
	scratchPrefix = ".sandbox-write-"
)

// resolveFile makes a file operation a command: this program again, as an exec
// like any other. So a deadline, a kill and a file system that hangs are what they
// are for a program.
func (s *supervisor) resolveFile(c *command, id string, op *wire.FileOp) error {
	c.argv = append(c.argv, s.opts.Self...)
	switch op.Op {
	case wire.FileWrite:
		// Beside the target, so that it can be renamed to it.
		dir, _ := splitPath(op.Path)
		scratch := dir + scratchPrefix + id
		mode := op.Mode
		if mode == 0 {
			mode = wire.DefaultFileMode
		}
		c.argv = append(c.argv, string(op.Op), scratch, strconv.FormatUint(uint64(mode), 8), op.Path)
		c.scratch = scratch
		if !filepath.IsAbs(scratch) {
			c.scratch = c.dir + "/" + scratch // not Join, which resolves .. without a look at links
		}
	case wire.FileRead:
		c.argv = append(c.argv, string(op.Op), op.Path)
	default:
		return wire.Invalid("program.file.op", 0, "this sandbox's runner knows no such operation on files")
	}
	return c.lookPath()
}

// splitPath cuts a path behind its last slash.
func splitPath(path string) (dir, name string) {
	i := strings.LastIndexByte(path, '/') + 1
	return path[:i], path[i:]
}

// File does one operation on a file, as a process of its own. The arguments are
//
//	write SCRATCH MODE PATH   in is the content; a wire.FileReport goes to out
//	read PATH                 the content goes to out; a wire.FileReport to errOut
//
// with MODE in octal. A write goes to the new file SCRATCH, which takes the place
// of PATH at in's end, and is removed if that is not reached. A symbolic link at
// PATH is replaced itself. A read follows links, and takes regular files alone.
//
// An error has been told, as a wire.FileFailure on errOut. When ctx ends, File
// returns at once: a read or write under way ends with the process.
func File(ctx context.Context, args []string, in io.Reader, out, errOut io.Writer) error {
	err := file(ctx, args, in, out, errOut)
	if err == nil {
		return nil
	}
	e := asWire(err)
	_ = printJSON(errOut, wire.FileFailure{Error: e}) // who does not listen needs no answer
	return e
}

func file(ctx context.Context, args []string, in io.Reader, out, errOut io.Writer) error {
	if err := hidden(); err != nil {
		return err
	}
	switch {
	case len(args) == 4 && args[0] == string(wire.FileWrite):
		mode, err := strconv.ParseUint(args[2], 8, 32)
		if err != nil || mode > wire.MaxFileMode {
			return wire.Invalid("program.file.mode", wire.MaxFileMode, "the mode has more than permission bits")
		}
		w, err := createScratch(args[1], args[3])
		if err != nil {
			return err
		}
		defer w.drop()
		return until(ctx, func() error {
			r, err := w.fill(in, fs.FileMode(mode))
			if err != nil {
				return err
			}
			return printJSON(out, r)
		})
	case len(args) == 2 && args[0] == string(wire.FileRead):
		return until(ctx, func() error {
			r, err := readFile(args[1], out)
			if err != nil {
				return err
			}
			return printJSON(errOut, r)
		})
	}
	return wire.Invalid("program.file.op", 0, "there is no such operation on files")
}

// until runs work and returns with it, or before it when ctx ends.
func until(ctx context.Context, work func() error) error {
	done := make(chan error, 1)
	go func() { done <- work() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		return &wire.Error{Code: wire.CodeUnavailable, Reason: "canceled", Message: "the operation was ended before the file was there"}
	}
}

// readFile copies a regular file to out.
func readFile(path string, out io.Writer) (wire.FileReport, error) {
	// O_NONBLOCK: a FIFO without a writer must not keep us. Regular files ignore it.
	f, err := os.OpenFile(path, os.O_RDONLY|unix.O_NONBLOCK|unix.O_NOCTTY, 0)
	if err != nil {
		return wire.FileReport{}, fileError("opening the file", err)
	}
	defer func() { _ = f.Close() }()
	st, err := f.Stat()
	if err != nil {
		return wire.FileReport{}, fileError("opening the file", err)
	}
	if err := checkRegular(st); err != nil {
		return wire.FileReport{}, err
	}
	r, err := move(out, f)
	if err != nil {
		return r, fileError("reading the file", err)
	}
	r.Mode = uint32(st.Mode().Perm())
	return r, nil
}

func checkRegular(st fs.FileInfo) error {
	switch {
	case st.IsDir():
		return wire.Invalid(wire.FieldFilePath, 0, "the path names a directory, not a file")
	case !st.Mode().IsRegular():
		return wire.Invalid(wire.FieldFilePath, 0, "the path names no regular file")
	}
	return nil
}

// move copies src to dst and says what it was.
func move(dst io.Writer, src io.Reader) (wire.FileReport, error) {
	h := sha256.New()
	// The struct hides the shortcuts of *os.File, which use small buffers.
	n, err := io.CopyBuffer(io.MultiWriter(dst, h), struct{ io.Reader }{src}, make([]byte, fileBuffer))
	return wire.FileReport{Size: n, SHA256: hex.EncodeToString(h.Sum(nil))}, err
}

func printJSON(w io.Writer, v any) error {
	_, err := w.Write(append(wire.Marshal(v), '\n'))
	return err
}

// fileError makes an *wire.Error of a failure of the file system. The path is not
// repeated: the client knows it, and logs must not.
func fileError(doing string, err error) error {
	if wire.AsError(err) != nil {
		return err
	}
	text := err.Error()
	var number syscall.Errno
	if errors.As(err, &number) {
		text = number.Error()
	}
	switch number {
	case unix.ENOENT:
		return &wire.Error{Code: wire.CodeNotFound, Field: wire.FieldFilePath, Message: doing + ": " + text}
	case unix.ENOSPC, unix.EDQUOT:
		return &wire.Error{Code: wire.CodeExhausted, Reason: wire.ReasonNoSpace, Message: doing + ": the workspace is full: " + text}
	case unix.EACCES, unix.EPERM, unix.EROFS, unix.ENOTDIR, unix.EISDIR, unix.EEXIST, unix.ELOOP, unix.ENAMETOOLONG, unix.ENXIO, unix.EFBIG:
		return wire.Invalid(wire.FieldFilePath, 0, "%s: %s", doing, text)
	}
	return wire.Errorf(wire.CodeInternal, "%s: %s", doing, text)
}

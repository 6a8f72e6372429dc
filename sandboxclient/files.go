package sandboxclient

import (
	"context"
	"io"
	"io/fs"
	"unicode/utf8"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// maxFileLine bounds what is kept of the line that ends a file operation, in bytes.
const maxFileLine = 4096

// Files moves files to and from the sandbox of a [Lease]. Its methods may be
// called from many goroutines at once.
//
// Paths are relative to the workspace, or absolute: 1 to 4096 bytes of UTF-8, none
// of them zero. A file is streamed and never held in memory. Both ends compute its
// SHA-256 and size; if they differ the error is an [*Error] that matches
// [ErrInternal].
//
// What the broker or the sandbox refuses is an [*Error]: [ErrNotFound] for a file
// that is not there, [ErrInvalid] for a path that names no regular file or that the
// sandbox's user may not use, [ErrExhausted] with Reason "no_space" for a full
// workspace. An operation that was ended from outside is an [*ExitError] whose
// Reason says how, such as [ReasonTimeout], [ReasonOOM] or [ReasonLost]; a lost
// connection is a [*DisconnectedError]. The pool's maximum bounds each operation's
// time; ctx may end it earlier.
type Files struct {
	lease *Lease
}

// FileInfo is what was moved.
type FileInfo struct {
	Size   int64       // in bytes
	SHA256 string      // in hexadecimal
	Mode   fs.FileMode // permission bits
}

// Files gives access to the files of the lease's sandbox.
func (l *Lease) Files() *Files { return &Files{lease: l} }

// Write makes a file of all that r has, with the permission bits of mode; 0 is
// 0644. Missing directories are made. Whatever was at path is replaced in one step,
// after r has ended with io.EOF: when r fails, ctx ends or anything else goes wrong
// before, the old file stays. A symbolic link is replaced itself, not what it
// names; a directory is refused. A nil r makes an empty file.
//
// A Read of r that blocks does not hold up the end of the call; see [Cmd].
func (f *Files) Write(ctx context.Context, path string, r io.Reader, mode fs.FileMode) (FileInfo, error) {
	if mode == 0 {
		mode = wire.DefaultFileMode
	}
	src := newFileSource(r, ctx.Err)
	line := &capture{limit: maxFileLine}
	op := wire.FileOp{Op: wire.FileWrite, Path: path, Mode: uint32(mode)}
	_, err := f.do(ctx, "WriteFile", op, stdio{stdin: src, stdout: line, whole: true}, &src.fileSum, line)
	if err != nil {
		return FileInfo{}, err
	}
	return src.info(mode), nil
}

// Read copies a regular file to w, which gets its bytes as they come; nil discards
// them. Links are followed. After an error, w has been given the beginning of the
// file, or none of it. An error of w ends the operation.
func (f *Files) Read(ctx context.Context, path string, w io.Writer) (FileInfo, error) {
	sink := newFileSink(orDiscard(w))
	line := &capture{limit: maxFileLine}
	op := wire.FileOp{Op: wire.FileRead, Path: path}
	report, err := f.do(ctx, "ReadFile", op, stdio{stdout: sink, stderr: line}, &sink.fileSum, line)
	if err != nil {
		return FileInfo{}, err
	}
	return sink.info(fs.FileMode(report.Mode).Perm()), nil
}

// do runs one operation to its end, and compares what moved here with what the
// sandbox reports on line.
func (f *Files) do(ctx context.Context, name string, op wire.FileOp, streams stdio, moved *fileSum, line *capture) (wire.FileReport, error) {
	var none wire.FileReport
	if !utf8.ValidString(op.Path) {
		// JSON would quietly name another file.
		return none, wire.Invalid(wire.FieldFilePath, 0, "the path is not UTF-8")
	}
	client := f.lease.client
	if err := client.usable(ctx); err != nil {
		return none, err
	}
	failure := line
	if streams.stderr == nil {
		failure = &capture{limit: maxFileLine}
		streams.stderr = failure
	}
	ctx, span := client.startSpan(ctx, name, "", nil, nil)
	req := wire.Request{Op: wire.OpExec, Lease: f.lease.handle, Program: &wire.Program{File: &op}}
	e, err := client.startExec(ctx, span, req, nil, streams)
	if err != nil {
		endSpan(span, streamResult{}, err)
		return none, err
	}
	<-e.done
	result := e.outcome()
	switch n := result.ending; {
	case moved.failure() != nil:
		return none, moved.failure()
	case e.early != nil && n != nil && n.Reason == ReasonCanceled:
		return none, e.early // the ending is only what came of it
	case e.early != nil || n == nil || n.Reason != ReasonExited:
		return none, e.err
	case n.ExitCode != 0:
		return none, fileFailure(failure, n.ExitCode, result.response.RequestID)
	}
	return moved.compare(line, result.response.RequestID)
}

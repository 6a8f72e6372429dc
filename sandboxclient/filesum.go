package sandboxclient

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"hash"
	"io"
	"io/fs"
	"sync"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// maxQuoted bounds what an error repeats of a helper that made no sense, in bytes.
const maxQuoted = 200

// fileCodes are the codes that a sandbox may give its failures. What runs in it
// shall not make its owner believe that, say, a token is not valid.
var fileCodes = map[wire.Code]bool{
	wire.CodeInvalid: true, wire.CodeNotFound: true, wire.CodeConflict: true,
	wire.CodeExhausted: true, wire.CodeUnavailable: true, wire.CodeInternal: true,
}

// fileSum is the account of a file's bytes on this side.
type fileSum struct {
	mu   sync.Mutex // guards what follows: a stream that was given up may still move
	hash hash.Hash
	size int64
	err  error // what the caller's reader or writer failed with
}

func (s *fileSum) add(p []byte) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.hash.Write(p) // never fails
	s.size += int64(len(p))
}

func (s *fileSum) fail(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.err == nil {
		s.err = err
	}
}

func (s *fileSum) failure() error {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.err
}

func (s *fileSum) info(mode fs.FileMode) FileInfo {
	s.mu.Lock()
	defer s.mu.Unlock()
	return FileInfo{Size: s.size, SHA256: hex.EncodeToString(s.hash.Sum(nil)), Mode: mode}
}

// compare reads the sandbox's report, and holds it against what moved here.
func (s *fileSum) compare(line *capture, requestID string) (wire.FileReport, error) {
	var r wire.FileReport
	text, _ := line.close()
	if err := json.Unmarshal(text, &r); err != nil || r.SHA256 == "" {
		return r, &Error{Code: wire.CodeInternal, RequestID: requestID, Message: fmt.Sprintf("the sandbox did not report on the file: %.*q", maxQuoted, text)}
	}
	here := s.info(0)
	if here.Size != r.Size || here.SHA256 != r.SHA256 {
		return r, &Error{Code: wire.CodeInternal, RequestID: requestID, Message: fmt.Sprintf(
			"the file arrived changed: %d bytes with SHA-256 %s here, %d bytes with %.*q in the sandbox", here.Size, here.SHA256, r.Size, 2*sha256.Size, r.SHA256)}
	}
	return r, nil
}

// fileFailure is the error that a file helper told before it exited with code.
func fileFailure(line *capture, code int, requestID string) *Error {
	text, _ := line.close()
	var f wire.FileFailure
	if err := json.Unmarshal(text, &f); err != nil || f.Error == nil || !fileCodes[f.Error.Code] {
		return &Error{Code: wire.CodeInternal, RequestID: requestID, Message: fmt.Sprintf("the sandbox failed to move the file (exit status %d): %.*q", code, maxQuoted, bytes.TrimSpace(text))}
	}
	f.Error.RequestID = requestID
	return f.Error
}

// fileSource is the content of a file on its way to the sandbox.
type fileSource struct {
	fileSum
	r     io.Reader
	ended func() error // the context's error
}

func newFileSource(r io.Reader, ended func() error) *fileSource {
	if r == nil {
		r = bytes.NewReader(nil)
	}
	return &fileSource{fileSum: fileSum{hash: sha256.New()}, r: r, ended: ended}
}

// Read passes an io.EOF on only where the content is whole: not when the context
// has ended, because that is what ends many readers.
func (s *fileSource) Read(p []byte) (int, error) {
	n, err := s.r.Read(p)
	s.add(p[:n])
	if err == io.EOF { //nolint:errorlint // io.Reader's end is io.EOF itself; one that is wrapped is a failure
		if err = s.ended(); err == nil {
			return n, io.EOF
		}
	}
	if err != nil {
		if errors.Is(err, io.EOF) {
			err = errors.New(err.Error()) // or copy would take it for the end
		}
		s.fail(fmt.Errorf("sandboxclient: reading the file's content: %w", err))
	}
	return n, err
}

// fileSink is the writer that a file from the sandbox goes to.
type fileSink struct {
	fileSum
	w io.Writer
}

func newFileSink(w io.Writer) *fileSink {
	return &fileSink{fileSum: fileSum{hash: sha256.New()}, w: w}
}

// Write implements io.Writer.
func (s *fileSink) Write(p []byte) (int, error) {
	s.add(p)
	if err := writeAll(s.w, p); err != nil {
		s.fail(fmt.Errorf("sandboxclient: writing the file's content: %w", err))
		return 0, err
	}
	return len(p), nil
}

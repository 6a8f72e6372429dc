package channel

import (
	"bufio"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// lengthSize is the length before each frame, in bytes.
const lengthSize = 4

// readBuffer is how much of a body is read ahead, in bytes: several small frames. A
// large one is read past it, and every open exec holds one at each end.
const readBuffer = 4 << 10

// maxFrame bounds an encoded frame: the largest request.
const maxFrame = wire.HeaderSize + wire.MaxControl + wire.MaxCode

// ErrMalformed marks what is no frame: the other end breaks the protocol, which no new
// channel mends.
var ErrMalformed = errors.New("channel: a malformed frame")

// FrameReader reads the frames of one body. It is used by one goroutine.
type FrameReader struct {
	r     *bufio.Reader
	limit int
	buf   []byte
}

// NewFrameReader reads frames of at most limit bytes of payload from r.
func NewFrameReader(r io.Reader, limit int) *FrameReader {
	return &FrameReader{r: bufio.NewReaderSize(r, readBuffer), limit: limit + wire.HeaderSize}
}

// Read returns the next frame, io.EOF at the clean end of the body. The payload
// is valid until the next call. An error that matches ErrMalformed says that the other
// end sent what is no frame; any other, that the body broke.
func (fr *FrameReader) Read() (wire.Frame, error) {
	var head [lengthSize]byte
	if _, err := io.ReadFull(fr.r, head[:]); err != nil {
		return wire.Frame{}, err
	}
	n := int(binary.BigEndian.Uint32(head[:]))
	if n > fr.limit || n > maxFrame {
		return wire.Frame{}, fmt.Errorf("%w: its %d bytes exceed the limit of %d", ErrMalformed, n, fr.limit)
	}
	if cap(fr.buf) < n {
		fr.buf = make([]byte, n)
	}
	b := fr.buf[:n]
	if _, err := io.ReadFull(fr.r, b); err != nil {
		if err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return wire.Frame{}, err
	}
	f, err := wire.ParseFrame(b)
	if err != nil {
		return wire.Frame{}, fmt.Errorf("%w: %w", ErrMalformed, err)
	}
	return f, nil
}

// FrameWriter writes frames to one body, each in a single write and several in one
// where that costs nobody time: inside gVisor it is system calls that cost. It is
// safe for concurrent use.
type FrameWriter struct {
	mu    sync.Mutex // guards w, buf and the order of frames
	w     io.Writer
	flush func() error
	buf   []byte
	dirty bool // something was queued and not flushed
}

// NewFrameWriter writes to w, which may hold frames back until flush is called; nil:
// it does not.
func NewFrameWriter(w io.Writer, flush func() error) *FrameWriter {
	return &FrameWriter{w: w, flush: flush}
}

// Write sends one frame, and what was queued before it.
func (fw *FrameWriter) Write(f wire.Frame) error {
	if err := fw.Queue(f); err != nil {
		return err
	}
	return fw.Flush()
}

// Flush sends what was queued.
func (fw *FrameWriter) Flush() error {
	fw.mu.Lock()
	defer fw.mu.Unlock()
	if !fw.dirty || fw.flush == nil {
		return nil
	}
	fw.dirty = false
	return fw.flush()
}

// Queue writes one frame that may wait for the next Flush or Write.
func (fw *FrameWriter) Queue(f wire.Frame) error {
	fw.mu.Lock()
	defer fw.mu.Unlock()
	fw.buf = binary.BigEndian.AppendUint32(fw.buf[:0], uint32(wire.HeaderSize+len(f.Payload)))
	fw.buf = f.Append(fw.buf)
	if _, err := fw.w.Write(fw.buf); err != nil {
		return err
	}
	if cap(fw.buf) > 2*wire.MaxData {
		fw.buf = nil // a large request came by; do not keep its memory
	}
	fw.dirty = true
	return nil
}

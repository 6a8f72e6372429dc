package chaos

import (
	"fmt"
	"io"
	"sync"
	"time"
)

const (
	// keyLength and recordLength are the lengths of a pattern's key and of each of
	// its records, in bytes: key, colon, eight digits, newline.
	keyLength    = 6
	recordLength = keyLength + 10
	// maxRecords is how many records eight digits can number.
	maxRecords = 100_000_000
)

// pattern is a stream of bytes without end in which each record has the stream's key
// and its own number. So a byte that is lost, doubled, moved or of another stream
// shows.
type pattern string

// record appends the nth record to b.
func (p pattern) record(b []byte, n int64) []byte {
	return fmt.Appendf(b, "%s:%08d\n", string(p), n%maxRecords)
}

// bytes are the pattern's bytes from offset from to offset to.
func (p pattern) bytes(from, to int64) []byte {
	first := from / recordLength
	b := make([]byte, 0, to-from+2*recordLength)
	for n := first; n*recordLength < to; n++ {
		b = p.record(b, n)
	}
	return b[from-first*recordLength : to-first*recordLength]
}

// Delivery is what arrived of one output.
type Delivery struct {
	Bytes int64
	// WrongAt is the offset of the first byte that is not the pattern's; -1: none is.
	WrongAt int64
}

// checker is a writer that holds what comes against a pattern. Its methods may be
// called at any time.
type checker struct {
	want pattern
	goal int64 // full is closed when so many bytes are there

	mu   sync.Mutex // guards the rest
	got  Delivery
	full chan struct{}
}

func newChecker(want pattern, goal int64) *checker {
	c := &checker{want: want, goal: goal, got: Delivery{WrongAt: -1}, full: make(chan struct{})}
	if goal == 0 {
		close(c.full)
	}
	return c
}

// Write never fails: what is wrong is the judge's to tell.
func (c *checker) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	at := c.got.Bytes
	if c.got.WrongAt < 0 {
		for i, want := range c.want.bytes(at, at+int64(len(b))) {
			if b[i] != want {
				c.got.WrongAt = at + int64(i)
				break
			}
		}
	}
	c.got.Bytes += int64(len(b))
	if at < c.goal && c.got.Bytes >= c.goal {
		close(c.full)
	}
	return len(b), nil
}

func (c *checker) delivery() Delivery {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.got
}

// source is a reader of the first bytes of a pattern, in pieces with pauses between.
type source struct {
	from  pattern
	at    int64
	size  int64
	piece int64
	pause time.Duration
}

func (s *source) Read(b []byte) (int, error) {
	if s.at == s.size {
		return 0, io.EOF
	}
	if s.at > 0 {
		time.Sleep(s.pause) // a slow giver of input
	}
	n := copy(b, s.from.bytes(s.at, min(s.at+s.piece, s.size)))
	s.at += int64(n)
	return n, nil
}

package bench

import (
	"fmt"
	"strings"
	"time"
)

// program is what every call runs, and answer what it prints.
const (
	program = "print(1+1)"
	answer  = "2"
)

// maxKept bounds what a stopwatch keeps of the output, in bytes.
const maxKept = 1 << 10

// stopwatch is a writer that notes when the first and the last byte came.
type stopwatch struct {
	began       time.Time
	first, last time.Duration
	bytes       int64
	text        strings.Builder
}

func newStopwatch() *stopwatch { return &stopwatch{began: time.Now()} }

// Write implements io.Writer.
func (s *stopwatch) Write(p []byte) (int, error) {
	if len(p) == 0 {
		return 0, nil
	}
	s.last = time.Since(s.began)
	if s.first == 0 {
		s.first = s.last
	}
	s.bytes += int64(len(p))
	s.text.Write(p[:min(len(p), maxKept-s.text.Len())])
	return len(p), nil
}

// sample stops the watch. What was printed must be the answer.
func (s *stopwatch) sample() (Sample, error) {
	d := time.Since(s.began)
	if got := strings.TrimSpace(s.text.String()); got != answer {
		return Sample{}, fmt.Errorf("bench: the program printed %q, not %q", got, answer)
	}
	return Sample{FirstByte: s.first, LastByte: s.last, Done: d}, nil
}

// bulk stops the watch of a program that printed that many bytes.
func (s *stopwatch) bulk(want int64) (Sample, error) {
	d := time.Since(s.began)
	if s.bytes != want {
		return Sample{}, fmt.Errorf("bench: %d bytes of output came, not %d", s.bytes, want)
	}
	return Sample{FirstByte: s.first, LastByte: s.last, Done: d}, nil
}

package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"
)

// maxLine bounds a line that comes back, in bytes.
const maxLine = 256

// echo is a program that answers each line it is given with one. It belongs to one
// goroutine, but for Write.
type echo struct {
	stdin  *io.PipeReader
	input  *io.PipeWriter
	cancel context.CancelFunc
	lines  chan echoed
	ended  chan struct{}
	err    error // why the program ended; set before ended is closed

	mu   sync.Mutex // guards part
	part []byte     // of a line that has not come whole
}

// echoed is a line with the time at which its last byte came.
type echoed struct {
	text string
	at   time.Time
}

// startEcho runs a program with the echo as its standard output, and with its
// stdin. It goes on until close.
func startEcho(run func(context.Context, *echo) error) *echo {
	ctx, cancel := context.WithCancel(context.Background())
	e := &echo{cancel: cancel, lines: make(chan echoed, 1), ended: make(chan struct{})}
	e.stdin, e.input = io.Pipe()
	go func() {
		defer close(e.ended)
		e.err = run(ctx, e)
		// Nobody reads any more what is written.
		_ = e.stdin.CloseWithError(io.EOF)
	}()
	return e
}

// Write takes the program's output.
func (e *echo) Write(p []byte) (int, error) {
	now := time.Now()
	e.mu.Lock()
	defer e.mu.Unlock()
	e.part = append(e.part, p...)
	for {
		line, rest, whole := bytes.Cut(e.part, []byte("\n"))
		if !whole {
			break
		}
		select {
		case e.lines <- echoed{string(line), now}:
		default:
			return 0, errors.New("bench: the echo answers more than it is asked")
		}
		e.part = append([]byte(nil), rest...)
	}
	if len(e.part) > maxLine {
		return 0, fmt.Errorf("bench: the echo's line is longer than %d bytes", maxLine)
	}
	return len(p), nil
}

// line sends one and waits for the answer; at is when that came.
func (e *echo) line(ctx context.Context, text string) (answer string, at time.Time, err error) {
	sent := make(chan error, 1)
	go func() { // ends with the write: close closes the pipe
		_, err := io.WriteString(e.input, text+"\n")
		sent <- err
	}()
	for {
		select {
		case l := <-e.lines:
			return l.text, l.at, nil
		case err := <-sent:
			if err != nil {
				return "", time.Time{}, fmt.Errorf("bench: sending a line to the echo: %w", err)
			}
			sent = nil
		case <-e.ended:
			if e.err == nil {
				return "", time.Time{}, errors.New("bench: the echo ended")
			}
			return "", time.Time{}, fmt.Errorf("bench: the echo ended: %w", e.err)
		case <-ctx.Done():
			return "", time.Time{}, fmt.Errorf("bench: waiting for the echo: %w", ctx.Err())
		}
	}
}

// close ends the program and waits for that.
func (e *echo) close() {
	_ = e.input.Close()
	e.cancel()
	<-e.ended
}

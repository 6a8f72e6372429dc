package sandboxclient

import (
	"io"
	"unicode/utf8"
)

// TextWriter passes UTF-8 text on so that no character is split between two writes.
// Output comes in pieces of any length, and a piece may end within a character; who
// shows or decodes each write by itself wants a TextWriter before its writer.
//
// As the Stdout or Stderr of a program it is flushed at the program's end; elsewhere
// call Flush. A program's two outputs need one each.
type TextWriter struct {
	W io.Writer

	// ReplaceInvalid makes each byte that is no part of UTF-8 a U+FFFD, as a range
	// over a string does. Otherwise such bytes are passed on as they are.
	ReplaceInvalid bool

	held []byte // the beginning of a character, at most 3 bytes
	buf  []byte
}

// Write implements io.Writer. It holds back an incomplete character at the end.
func (t *TextWriter) Write(p []byte) (int, error) {
	t.buf = append(append(t.buf[:0], t.held...), p...)
	whole := len(t.buf) - incomplete(t.buf)
	t.held = append(t.held[:0], t.buf[whole:]...)
	if err := t.pass(t.buf[:whole]); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Flush writes what is held back. What comes later begins a new text.
func (t *TextWriter) Flush() error {
	rest := t.held
	t.held = nil
	return t.pass(rest)
}

func (t *TextWriter) pass(p []byte) error {
	if t.ReplaceInvalid && !utf8.Valid(p) {
		text := make([]byte, 0, len(p)+2*utf8.UTFMax)
		for _, r := range string(p) {
			text = utf8.AppendRune(text, r)
		}
		p = text
	}
	if len(p) == 0 {
		return nil
	}
	return writeAll(t.W, p)
}

// incomplete is how many bytes at the end of p are the beginning of a character.
func incomplete(p []byte) int {
	for n := 1; n <= min(len(p), utf8.UTFMax-1); n++ {
		if tail := p[len(p)-n:]; utf8.RuneStart(tail[0]) {
			if utf8.FullRune(tail) {
				return 0
			}
			return n
		}
	}
	return 0
}

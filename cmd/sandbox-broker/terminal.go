package main

import (
	"io"
	"os"
	"unicode/utf8"

	"golang.org/x/term"
)

// isTerminal reports whether w is one.
func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	return ok && term.IsTerminal(int(f.Fd()))
}

// harmless makes w safe for a program's output: on a terminal, control
// sequences are left out, because the program may be hostile to whoever looks.
func harmless(w io.Writer) io.Writer {
	if !isTerminal(w) {
		return w
	}
	return &plainText{w: w}
}

// plainText passes text on without control sequences (ECMA-48): what remains is
// printable, or one of newline, carriage return, tab and backspace. A sequence
// may be split between two writes, as may a character.
type plainText struct {
	w     io.Writer
	state textState
	char  []byte // a character that is not complete yet
	out   []byte
}

// textState is what the next byte belongs to.
type textState int

const (
	inText      textState = iota
	afterEsc              // ESC was the last byte
	inCSI                 // after ESC [, until a final byte
	inString              // a command string (OSC, DCS, APC, PM, SOS), until BEL or ESC \
	inStringESC           // ESC within one
)

const (
	bel = 0x07
	esc = 0x1b
)

// Write implements io.Writer.
func (t *plainText) Write(p []byte) (int, error) {
	t.out = t.out[:0]
	for _, b := range p {
		t.next(b)
	}
	if _, err := t.w.Write(t.out); err != nil {
		return 0, err
	}
	return len(p), nil
}

func (t *plainText) next(b byte) {
	switch t.state {
	case inText:
		t.text(b)
	case afterEsc:
		t.escaped(b)
	case inCSI:
		switch {
		case b == esc:
			t.state = afterEsc
		case b >= 0x40 || b < 0x20: // a final byte, or something that breaks it off
			t.state = inText
		}
	case inString:
		switch b {
		case bel:
			t.state = inText
		case esc:
			t.state = inStringESC
		}
	case inStringESC:
		t.state = inText // ESC \ ends the string; any other sequence breaks it off
		if b != '\\' {
			t.escaped(b)
		}
	}
}

// escaped handles the byte after ESC.
func (t *plainText) escaped(b byte) {
	switch {
	case b == '[':
		t.state = inCSI
	case b == ']' || b == 'P' || b == '_' || b == '^' || b == 'X':
		t.state = inString
	case b == esc || b >= 0x20 && b < 0x30: // intermediate bytes: the final one follows
		t.state = afterEsc
	default:
		t.state = inText
	}
}

// text handles a byte outside of sequences. A byte that is no part of UTF-8
// becomes U+FFFD: terminals read some such bytes as controls.
func (t *plainText) text(b byte) {
	if len(t.char) > 0 && b >= 0x80 && b < 0xc0 {
		t.char = append(t.char, b)
		if utf8.FullRune(t.char) {
			t.flush()
		}
		return
	}
	t.flush()
	switch {
	case b == esc:
		t.state = afterEsc
	case b == '\n' || b == '\r' || b == '\t' || b == '\b' || b >= 0x20 && b < 0x7f:
		t.out = append(t.out, b)
	case b >= 0x80:
		t.char = append(t.char, b)
		if utf8.FullRune(t.char) {
			t.flush()
		}
	}
}

// flush prints the character that was collected, unless it is a control one
// (U+0080 to U+009F).
func (t *plainText) flush() {
	if len(t.char) == 0 {
		return
	}
	r, size := utf8.DecodeRune(t.char)
	switch {
	case r == utf8.RuneError && size <= 1:
		t.out = utf8.AppendRune(t.out, utf8.RuneError)
	case r >= 0xa0:
		t.out = append(t.out, t.char...)
	}
	t.char = t.char[:0]
}

package main

import (
	"bytes"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/require"
)

func TestTerminalOutputHasNoControlSequences(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ in, want string }{
		"plain text":                 {"héllo, 世界 🙂\n\tx\r\b", "héllo, 世界 🙂\n\tx\r\b"},
		"colours":                    {"a\x1b[31;1mred\x1b[0mb", "aredb"},
		"the title":                  {"a\x1b]0;evil title\x07b", "ab"},
		"a title ended by ST":        {"a\x1b]0;evil\x1b\\b", "ab"},
		"the clipboard":              {"a\x1b]52;c;ZXZpbA==\x07b", "ab"},
		"a link":                     {"\x1b]8;;http://evil\x1b\\click\x1b]8;;\x1b\\", "click"},
		"a device's answer":          {"a\x1b[6n\x1b[cb", "ab"},
		"a device control string":    {"a\x1bP$q\"p\x1b\\b", "ab"},
		"a character set":            {"a\x1b(0b", "ab"},
		"a reset":                    {"a\x1bcb", "ab"},
		"other controls":             {"a\x00\x01\x07\x0b\x0c\x0e\x7fb", "ab"},
		"controls of eight bits":     {"a\xc2\x9b31mb", "a31mb"},
		"bytes that are not UTF-8":   {"a\x9b\xffb", "a\ufffd\ufffdb"},
		"a character broken off":     {"a\xe4\xb8b", "a\ufffdb"},
		"a sequence in a sequence":   {"a\x1b[3\x1b[1mb", "ab"},
		"a string broken off by CSI": {"a\x1b]0;x\x1b[1mb", "ab"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			var whole, single bytes.Buffer
			n, err := (&plainText{w: &whole}).Write([]byte(c.in))
			require.NoError(t, err)
			require.Equal(t, len(c.in), n)
			require.Equal(t, c.want, whole.String())
			bytewise := &plainText{w: &single}
			for _, b := range []byte(c.in) {
				_, err := bytewise.Write([]byte{b})
				require.NoError(t, err)
			}
			require.Equal(t, c.want, single.String(), "split between writes")
		})
	}
}

func FuzzTerminalOutput(f *testing.F) {
	f.Add([]byte("a\x1b[31mb\xc2\x9b\x1b]0;t\x07"))
	f.Fuzz(func(t *testing.T, in []byte) {
		var out bytes.Buffer
		_, err := (&plainText{w: &out}).Write(in)
		require.NoError(t, err)
		require.True(t, utf8.Valid(out.Bytes()))
		for _, r := range out.String() {
			if r < 0x20 || r >= 0x7f && r < 0xa0 {
				require.Contains(t, "\n\r\t\b", string(r))
			}
		}
	})
}

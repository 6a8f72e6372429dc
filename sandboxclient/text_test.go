package sandboxclient_test

import (
	"bytes"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/brokertest"
)

// split writes text in two pieces, cut at i, and returns the writes that came.
func split(t *testing.T, text string, i int, replace bool) []string {
	t.Helper()
	var got []string
	w := &sandboxclient.TextWriter{ReplaceInvalid: replace, W: writerFunc(func(p []byte) (int, error) {
		got = append(got, string(p))
		return len(p), nil
	})}
	for _, piece := range []string{text[:i], text[i:]} {
		n, err := w.Write([]byte(piece))
		require.NoError(t, err)
		require.Equal(t, len(piece), n)
	}
	require.NoError(t, w.Flush())
	return got
}

// checkSplits holds a TextWriter against its promise at every split point of text.
func checkSplits(t *testing.T, text string) {
	t.Helper()
	for i := range len(text) + 1 {
		plain := split(t, text, i, false)
		require.Equal(t, text, strings.Join(plain, ""), "nothing is changed")
		if utf8.ValidString(text) {
			for _, w := range plain {
				require.True(t, utf8.ValidString(w), "%q, cut at %d, wrote %q", text, i, w)
			}
		}
		replaced := split(t, text, i, true)
		require.Equal(t, string([]rune(text)), strings.Join(replaced, ""), "%q cut at %d", text, i)
		for _, w := range replaced {
			require.True(t, utf8.ValidString(w))
		}
	}
}

var texts = []string{
	"", "a", "äöü", "日本語", "a😀b", "\xff", "a\xc3", "\xe6\x97", "\xf0\x9f\x98", "\x80\x80", "\xc3(", "\xed\xa0\x80", "\xf8\x88\x80\x80\x80", "é\xe9é", "\xf0\x9fx",
}

// Must hold: no character is split, wherever the output is.
func TestTextIsNeverSplitWithinACharacter(t *testing.T) {
	for _, text := range texts {
		checkSplits(t, text)
	}
}

func FuzzTextWriter(f *testing.F) {
	for _, text := range texts {
		f.Add(text)
	}
	f.Fuzz(func(t *testing.T, text string) {
		if len(text) > 200 {
			text = text[:200]
		}
		checkSplits(t, text)
	})
}

func TestTextOfAProgram(t *testing.T) {
	const text = "日本語 ends within: \xe6\x97"
	c, _ := connect(t, brokertest.Each(func(s *brokertest.Stream) {
		s.Respond(accepted)
		for i := range len(text) {
			s.Stdout(text[i : i+1])
		}
		s.Exit(exited(0))
	}))
	var out bytes.Buffer
	_, err := run(t, c, sandboxclient.Code{Stdout: &sandboxclient.TextWriter{W: &out}})
	require.NoError(t, err)
	assert.Equal(t, text, out.String())
}

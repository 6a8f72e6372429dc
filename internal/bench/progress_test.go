package bench

import (
	"bytes"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"
)

func TestProgressWithoutATerminal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		p := NewProgress(&out, false, 100*time.Second)
		p.Working("one Job per call")
		for range 100 {
			time.Sleep(2 * time.Second)
			p.Add(time.Second)
		}
		p.Note("a call failed: %v", "\x1b[2Jthe disk\nis full")
		p.Close()
		lines := strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
		require.Len(t, lines, 100/lineEvery+2, "few lines, however many calls")
		require.Equal(t, "bench: 0 %, 0s: one Job per call", lines[0])
		require.Equal(t, "bench: 5 %, 10s: one Job per call", lines[1])
		require.Equal(t, "bench: 100 %, 3m20s: one Job per call", lines[20])
		require.Equal(t, "a call failed:  [2Jthe disk is full", lines[21])
		require.NotContains(t, out.String(), "\x1b", "no control sequences")
	})
}

func TestProgressOnATerminal(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var out bytes.Buffer
		p := NewProgress(&out, true, 100*time.Second)
		time.Sleep(time.Second)
		p.Working("run, from stock")
		p.Add(50 * time.Second) // too soon to draw again
		time.Sleep(redrawAfter)
		p.Add(0)
		require.Equal(t, "\r\x1b[K[..............................]   0 % 1s run, from stock"+
			"\r\x1b[K[###############...............]  50 % 1s run, from stock", out.String())
		out.Reset()
		p.Note("a call failed")
		require.True(t, strings.HasPrefix(out.String(), "\r\x1b[Ka call failed\n\r\x1b[K["), "%q", out.String())
		out.Reset()
		p.Add(time.Hour)
		require.Contains(t, out.String(), "100 %", "never more")
		out.Reset()
		p.Close()
		p.Working("nothing")
		p.Add(time.Second)
		require.Equal(t, "\r\x1b[K", out.String(), "the line is left clean")
	})
}

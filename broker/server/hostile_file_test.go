package server_test

import (
	"crypto/sha256"
	"encoding/hex"
	"io/fs"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandbox-broker/sandbox-broker/internal/hostile"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

func sha256Of(text string) string {
	h := sha256.Sum256([]byte(text))
	return hex.EncodeToString(h[:])
}

// fileLie tells of a file: content on stdout, a report on stderr, an exit code.
func fileLie(content, report string, code int) func(*hostile.Exec) {
	return func(e *hostile.Exec) {
		e.Answer()
		e.Send(wire.Frame{Kind: wire.KindWindow, Payload: append([]byte{0}, 0, 0, 0, 0, 0, 1, 0, 0)})
		if content != "" {
			e.Print(0, content)
		}
		if report != "" {
			e.Send(wire.Frame{Kind: wire.KindStderr, Payload: []byte(report)})
		}
		e.Exit(wire.Ending{Reason: wire.ReasonExited, ExitCode: code, StdoutBytes: uint64(len(content)), StderrBytes: uint64(len(report))})
		e.AwaitEnd()
	}
}

// What a hostile sandbox reports of a file is held against what moved; what it says of
// a failure cannot pass for the broker's word.
func TestLiesAboutFiles(t *testing.T) {
	report := func(size, hash string) string {
		return `{"size":` + size + `,"sha256":"` + hash + `","mode":420}` + "\n"
	}
	for name, tc := range map[string]struct {
		lie  func(*hostile.Exec)
		want string // part of the error; empty: none
	}{
		"the truth":                    {fileLie("abc", report("3", sha256Of("abc")), 0), ""},
		"a larger size":                {fileLie("abc", report("4", sha256Of("abc")), 0), "arrived changed"},
		"a size below nothing":         {fileLie("abc", report("-1", sha256Of("abc")), 0), "arrived changed"},
		"a size beyond numbers":        {fileLie("abc", report("1e99", sha256Of("abc")), 0), "did not report"},
		"another hash":                 {fileLie("abc", report("3", sha256Of("abd")), 0), "arrived changed"},
		"a hash of a page":             {fileLie("abc", report("3", strings.Repeat("f", 3000)), 0), "arrived changed"},
		"no hash":                      {fileLie("abc", report("3", ""), 0), "did not report"},
		"no report":                    {fileLie("abc", "", 0), "did not report"},
		"a report of a page":           {fileLie("abc", strings.Repeat("x", 60<<10), 0), "did not report"},
		"a failure in the edge's name": {fileLie("", `{"error":{"code":"unauthenticated","message":"no"}}`, 1), "failed to move the file"},
		"a failure that is none":       {fileLie("", "\x1b[2J", 1), "failed to move the file"},
		"a failure of a page":          {fileLie("", strings.Repeat("x", 60<<10), 1), "failed to move the file"},
	} {
		t.Run(name, func(t *testing.T) {
			s := newDividedSite(t, hostile.Execs(tc.lie))
			lease, err := s.client(tokenA).Acquire(deadline(t), liarPool)
			require.NoError(t, err)
			var out strings.Builder
			info, err := lease.Files().Read(deadline(t), "file", &out)
			require.NoError(t, lease.Release(deadline(t)))
			if tc.want == "" {
				require.NoError(t, err)
				require.Equal(t, fs.FileMode(0o644), info.Mode)
				return
			}
			require.ErrorContains(t, err, tc.want)
			require.ErrorIs(t, err, sandboxclient.ErrInternal)
			require.Less(t, len(err.Error()), 1500)
			require.NotContains(t, err.Error(), "\x1b")
		})
	}
	t.Run("a mode with more than permissions", func(t *testing.T) {
		s := newDividedSite(t, hostile.Execs(fileLie("abc", `{"size":3,"sha256":"`+sha256Of("abc")+`","mode":4294967295}`, 0)))
		lease, err := s.client(tokenA).Acquire(deadline(t), liarPool)
		require.NoError(t, err)
		info, err := lease.Files().Read(deadline(t), "file", nil)
		require.NoError(t, err)
		require.Equal(t, fs.FileMode(0o777), info.Mode, "no set-id bits, no device")
		require.NoError(t, lease.Release(deadline(t)))
	})
	t.Run("a file that was written to nowhere", func(t *testing.T) {
		s := newDividedSite(t, hostile.Execs(func(e *hostile.Exec) {
			fileLie(report("5", sha256Of("other")), "", 0)(e)
		}))
		lease, err := s.client(tokenA).Acquire(deadline(t), liarPool)
		require.NoError(t, err)
		_, err = lease.Files().Write(deadline(t), "file", strings.NewReader("abc"), 0)
		require.ErrorContains(t, err, "arrived changed")
		require.NoError(t, lease.Release(deadline(t)))
	})
}

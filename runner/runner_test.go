package runner_test

import (
	"bytes"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbox-broker/sandbox-broker/internal/channel"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

func sh(script string) wire.Program { return wire.Program{Argv: []string{"sh", "-c", script}} }

func TestExecEndings(t *testing.T) {
	c := startRunner(t).open()
	for name, tc := range map[string]struct {
		p      wire.Program
		stdout string
		ending wire.Ending
	}{
		"exit 0":     {sh("echo hi"), "hi\n", wire.Ending{Reason: wire.ReasonExited}},
		"exit 1":     {sh("exit 1"), "", wire.Ending{Reason: wire.ReasonExited, ExitCode: 1}},
		"exit 255":   {sh("exit 255"), "", wire.Ending{Reason: wire.ReasonExited, ExitCode: 255}},
		"signal":     {sh("kill -KILL $$"), "", wire.Ending{Reason: wire.ReasonSignaled, Signal: "SIGKILL"}},
		"background": {sh("sleep 60 & echo started"), "started\n", wire.Ending{Reason: wire.ReasonExited}},
		"daemon":     {sh("setsid sh -c 'sleep 60' & echo started"), "started\n", wire.Ending{Reason: wire.ReasonExited}},
		"no input":   {sh("cat; echo end"), "end\n", wire.Ending{Reason: wire.ReasonExited}},
	} {
		t.Run(name, func(t *testing.T) {
			began := time.Now()
			r := run(t, c, strings.ReplaceAll(name, " ", "-"), tc.p, "")
			require.Nil(t, r.err)
			require.Equal(t, tc.stdout, r.stdout)
			require.Equal(t, tc.ending.Reason, r.ending.Reason)
			require.Equal(t, tc.ending.ExitCode, r.ending.ExitCode)
			require.Equal(t, tc.ending.Signal, r.ending.Signal)
			require.True(t, r.ending.Complete)
			require.EqualValues(t, len(r.stdout), r.ending.StdoutBytes)
			require.Less(t, time.Since(began), strayBound, "a child that holds stdout must not keep the exec open")
		})
	}
}

// strayBound is well under the sleeps of the programs that must be killed.
const strayBound = 10 * time.Second

func TestLanguages(t *testing.T) {
	s := startRunner(t)
	c := s.open()
	for lang, code := range map[string]string{
		"python": "import sys\nprint(1+1, __file__, sys.argv[1:])",
		"shell":  "echo $((1+1)) $0 [\\'$1\\']",
		"node":   "console.log(1+1, process.argv[1].split('/').pop(), `['${process.argv[2]}']`)",
	} {
		t.Run(lang, func(t *testing.T) {
			if _, err := exec.LookPath(map[string]string{"python": "python3", "shell": "bash", "node": "node"}[lang]); err != nil {
				t.Skipf("this machine has no %s", lang)
			}
			r := run(t, c, lang, wire.Program{Language: lang, Argv: []string{"x"}}, code)
			require.Nil(t, r.err)
			require.Regexp(t, `^2 (.*/)?main\.(py|sh|js) \['x'\]\n$`, r.stdout, r.stderr)
		})
	}
	left, err := os.ReadDir(s.dir)
	require.NoError(t, err)
	require.Empty(t, left, "scripts are removed")
}

func TestTimeoutKeepsOutput(t *testing.T) {
	c := startRunner(t).open()
	st := start(sh("echo before; trap '' TERM; sleep 60; sleep 60"))
	st.Timeout = 2 * time.Second
	s, err := c.Exec(deadline(t), "x", st, nil)
	require.NoError(t, err)
	r := collect(t, s)
	require.Equal(t, wire.ReasonTimeout, r.ending.Reason)
	require.Equal(t, "before\n", r.stdout)
}

func TestStdin(t *testing.T) {
	c := startRunner(t).open()
	t.Run("half close", func(t *testing.T) {
		p := sh("cat; echo end")
		p.Stdin = true
		s, err := c.Exec(deadline(t), "half", start(p), nil)
		require.NoError(t, err)
		require.NoError(t, s.Send(wire.Frame{Kind: wire.KindStdin, Payload: []byte("hello ")}))
		require.NoError(t, s.Send(wire.Frame{Kind: wire.KindStdin, Offset: 6, Payload: []byte("world\n")}))
		require.NoError(t, s.Send(wire.Frame{Kind: wire.KindStdinEnd, Offset: 12}))
		require.Equal(t, "hello world\nend\n", collect(t, s).stdout)
	})
	t.Run("never read", func(t *testing.T) {
		p := sh("exit 3")
		p.Stdin = true
		s, err := c.Exec(deadline(t), "never", start(p), nil)
		require.NoError(t, err)
		require.NoError(t, s.Send(wire.Frame{Kind: wire.KindStdin, Payload: make([]byte, wire.MaxData)}))
		require.Equal(t, 3, collect(t, s).ending.ExitCode)
	})
	t.Run("gap", func(t *testing.T) {
		p := sh("cat")
		p.Stdin = true
		s, err := c.Exec(deadline(t), "gap", start(p), nil)
		require.NoError(t, err)
		require.NoError(t, s.Send(wire.Frame{Kind: wire.KindStdin, Offset: 9, Payload: []byte("x")}))
		r := collect(t, s)
		require.NotNil(t, r.err)
		require.Equal(t, "stdin.offset", r.err.Field)
	})
	t.Run("beyond credit", func(t *testing.T) {
		p := sh("sleep 5")
		p.Stdin = true
		s, err := c.Exec(deadline(t), "credit", start(p), nil)
		require.NoError(t, err)
		for i := range 10 {
			if err := s.Send(wire.Frame{Kind: wire.KindStdin, Offset: uint64(i) * wire.MaxData, Payload: make([]byte, wire.MaxData)}); err != nil {
				break
			}
		}
		r := collect(t, s)
		require.NotNil(t, r.err)
		require.Equal(t, "stdin", r.err.Field)
	})
}

func TestAttachAfterTheChannelBroke(t *testing.T) {
	s := startRunner(t)
	c := s.open()
	st := start(sh("echo one; read x; echo two"))
	st.Program.Stdin = true
	first, err := c.Exec(deadline(t), "x", st, nil)
	require.NoError(t, err)
	var got string
	for got != "one\n" {
		f, err := first.Recv()
		require.NoError(t, err)
		if f.Kind == wire.KindStdout {
			got += string(f.Payload)
		}
	}
	c.Close()

	again, err := channel.Open(deadline(t), s.connect(), key, c.Boot())
	require.NoError(t, err)
	defer again.Close()
	require.NoError(t, again.Bind(deadline(t), lease))
	// Starting the same ID attaches; offset 0 gets everything once more.
	second, err := again.Exec(deadline(t), "x", st, nil)
	require.NoError(t, err)
	require.NoError(t, second.Send(wire.Frame{Kind: wire.KindStdin, Payload: []byte("\n")}))
	r := collect(t, second)
	require.Equal(t, "one\ntwo\n", r.stdout)
}

func TestHandshakeRefusals(t *testing.T) {
	s := startRunner(t)
	c := s.open()
	_, err := channel.Open(deadline(t), s.connect(), bytes.Repeat([]byte{8}, 32), "")
	require.ErrorIs(t, err, channel.ErrKeyRefused)
	_, err = channel.Open(deadline(t), s.connect(), key, strings.Repeat("0", 32))
	var changed *channel.BootChangedError
	require.ErrorAs(t, err, &changed)
	require.ErrorIs(t, c.Bind(deadline(t), channel.Bind{Lease: "other", Tenant: "b"}), wire.ErrConflict)
}

func TestLargeOutputIsComplete(t *testing.T) {
	c := startRunner(t).open()
	r := run(t, c, "big", sh("head -c 20000000 /dev/zero; head -c 300000 /dev/zero >&2"), "")
	require.Len(t, r.stdout, 20_000_000)
	require.Len(t, r.stderr, 300_000)
	require.True(t, r.ending.Complete)
}

func TestUnknownProgram(t *testing.T) {
	c := startRunner(t).open()
	for name, tc := range map[string]struct {
		p     wire.Program
		field string
	}{
		"language": {wire.Program{Language: "cobol"}, "program.language"},
		"argv":     {wire.Program{Argv: []string{"no-such-program"}}, "program.argv"},
		"dir":      {wire.Program{Argv: []string{"true"}, Dir: "nowhere"}, "program.dir"},
	} {
		_, err := c.Exec(deadline(t), name, start(tc.p), nil)
		e := wire.AsError(err)
		require.NotNil(t, e, name)
		require.Equal(t, tc.field, e.Field)
	}
}

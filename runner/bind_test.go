package runner_test

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandbox-broker/sandbox-broker/internal/channel"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// unbound is a channel whose sandbox belongs to nobody yet.
func (s *sandbox) unbound() *channel.Client {
	s.t.Helper()
	c, err := channel.Open(deadline(s.t), s.connect(), key, "")
	require.NoError(s.t, err)
	s.t.Cleanup(c.Close)
	return c
}

// A program's start binds as a Bind does: the first one wins, whichever it is.
func TestAStartBinds(t *testing.T) {
	c := startRunner(t).unbound()
	s, err := c.Exec(deadline(t), "early", channel.Start{Bind: lease, AttachOnly: true}, nil)
	require.ErrorIs(t, err, wire.ErrNotFound, "to attach binds nothing and finds nothing")
	require.Nil(t, s)
	require.Equal(t, "hi\n", run(t, c, "first", sh("echo hi"), "").stdout)

	other := lease
	other.Lease = "lease-2"
	require.True(t, channel.IsBoundElsewhere(c.Bind(deadline(t), other)))
	st := start(sh("echo no"))
	st.Bind = other
	_, err = c.Exec(deadline(t), "second", st, nil)
	require.True(t, channel.IsBoundElsewhere(err), err)
	st.Bind = lease
	st.Tenant = "somebody else"
	_, err = c.Exec(deadline(t), "third", st, nil)
	require.True(t, channel.IsBoundElsewhere(err), err)
	st.Lease = ""
	_, err = c.Exec(deadline(t), "fourth", st, nil)
	require.ErrorIs(t, err, wire.ErrInvalid)
	require.NoError(t, c.Bind(deadline(t), lease), "the same again")
}

// Of many that bind at once one wins, and only its program runs.
func TestOneOfManyBindsWins(t *testing.T) {
	s := startRunner(t)
	c := s.unbound()
	const many = 16
	won := make(chan string, many)
	for i := range many {
		go func() {
			st := start(sh("echo $0 >>ran"))
			st.Lease = "lease-" + strings.Repeat("x", i)
			e, err := c.Exec(deadline(t), "e", st, nil)
			if err != nil {
				won <- ""
				return
			}
			collect(t, e)
			e.Close()
			won <- st.Lease
		}()
	}
	winners := 0
	for range many {
		if <-won != "" {
			winners++
		}
	}
	require.Equal(t, 1, winners)
	ran, err := os.ReadFile(filepath.Join(s.dir, "ran"))
	require.NoError(t, err)
	require.Equal(t, "sh\n", string(ran), "one program ran")
}

func TestPrepareStartsSpares(t *testing.T) {
	c := startRunner(t, plainPath).unbound()
	st, err := c.Status(deadline(t))
	require.NoError(t, err)
	require.Empty(t, st.Spares, "none was asked for")
	for range 2 { // again changes nothing
		done, err := c.Prepare(deadline(t), channel.Prepare{Spares: []string{"python", "cobol"}, Preload: map[string][]string{"python": {"json", "nothing_by_this_name"}}})
		require.NoError(t, err)
		require.True(t, done.Spares["python"].Ready, "it answers when they wait for code")
		require.Len(t, done.Spares["python"].Problems, 1)
	}
	st, err = c.Status(deadline(t))
	require.NoError(t, err)
	require.Len(t, st.Spares, 1)
	require.Len(t, st.Spares["python"].Problems, 1)
	require.Contains(t, st.Spares["python"].Problems[0], "nothing_by_this_name")
	require.Equal(t, "True\n", run(t, c, "x", wire.Program{Language: "python"}, "import sys; print('json' in sys.modules)").stdout)
}

func TestTheNextProgramMeetsNothingLeftBehind(t *testing.T) {
	c := startRunner(t).open()
	// Many processes, which hold no output and take a while to be found. Their argument
	// tells them from those of other tests.
	mark := fmt.Sprintf("60.%d", os.Getpid())
	leaves := sh("for i in 0 1 2 3 4 5 6 7 8 9; do for j in 0 1 2 3; do setsid sleep " + mark + " <&- >&- 2>&- & done; done")
	for i := range 5 {
		require.Zero(t, run(t, c, fmt.Sprintf("leaves-%d", i), leaves, "").ending.ExitCode)
		r := run(t, c, fmt.Sprintf("looks-%d", i), sh("grep -l '"+mark[:len(mark)-1]+"["+mark[len(mark)-1:]+"]' /proc/[0-9]*/cmdline"), "")
		require.Empty(t, r.stdout, "these live on")
	}
}

// A program that has ended while nobody reads its output does not keep others waiting.
func TestUnreadOutputHoldsUpNoOtherProgram(t *testing.T) {
	c := startRunner(t).open()
	st := start(sh(fmt.Sprintf("head -c %d /dev/zero; echo $$ >&2", channel.Retention+channel.PipeSize/2))) // more than is kept, the rest fits a pipe
	st.Stdout.Limit = 1
	s, err := c.Exec(deadline(t), "unread", st, nil)
	require.NoError(t, err)
	defer s.Close()
	for {
		f, err := s.Recv()
		require.NoError(t, err)
		if f.Kind == wire.KindStderr {
			break
		}
	}
	require.Equal(t, "hi\n", run(t, c, "other", sh("echo hi"), "").stdout)
	require.NoError(t, s.Send(wire.Window{FD: wire.Stdout, Acked: 0, Limit: wire.MaxWindow}.Frame(0)))
}

package runner_test

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/sandbox-broker/sandbox-broker/internal/channel"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// rehearsals starts a runner for a module that notes each end of an interpreter which
// ran a program, in a file there, after a pause.
func rehearsals(t *testing.T, pause string) (s *sandbox, ends func() int) {
	t.Helper()
	needInterpreter(t, "python")
	notes := filepath.Join(t.TempDir(), "notes")
	dir := modules(t, map[string]string{"noting": `
import atexit, time

def note():
    time.sleep(` + pause + `)
    with open("` + notes + `", "a") as f:
        f.write("x")

atexit.register(note)`})
	return startRunner(t, plainPath, "PYTHONPATH="+dir), func() int {
		text, err := os.ReadFile(notes)
		if !os.IsNotExist(err) {
			require.NoError(t, err)
		}
		return len(text)
	}
}

var notingSpare = channel.Prepare{Spares: []string{"python"}, Preload: map[string][]string{"python": {"noting"}}}

// openUnbound opens the channel of a sandbox that stays nobody's.
func (s *sandbox) openUnbound() *channel.Client {
	s.t.Helper()
	c, err := channel.Open(deadline(s.t), s.connect(), key, "")
	require.NoError(s.t, err)
	s.t.Cleanup(c.Close)
	return c
}

// A sandbox that is nobody's runs a program once before it is ready, and shows no sign
// of that.
func TestRehearsal(t *testing.T) {
	s, ends := rehearsals(t, "0")
	c := s.openUnbound()
	done, err := c.Prepare(deadline(t), notingSpare)
	require.NoError(t, err)
	require.True(t, done.Spares["python"].Ready)
	require.Equal(t, 1, ends(), "a program has run to its end")
	require.Zero(t, done.Spares["python"].Used)
	names, err := os.ReadDir(s.dir)
	require.NoError(t, err)
	require.Empty(t, names, "nothing is left of it")
	st, err := c.Status(deadline(t))
	require.NoError(t, err)
	require.False(t, st.Bound)
	require.Zero(t, st.Execs)

	r := run(t, c, "x", python(), "print(1+1)")
	require.Equal(t, "2\n", r.stdout)
	require.Equal(t, wire.ReasonExited, r.ending.Reason)
	require.EqualValues(t, 1, spareStatus(t, c, "python").Used, "the program got a spare")
	waitSpare(t, c, "python")
	require.Equal(t, 2, ends(), "one rehearsal was all")
}

// A sandbox that is somebody's has no rehearsal: the first program is the tenant's.
func TestNoRehearsalOnceBound(t *testing.T) {
	s, ends := rehearsals(t, "0")
	c := s.open()
	done, err := c.Prepare(deadline(t), notingSpare)
	require.NoError(t, err)
	require.True(t, done.Spares["python"].Ready)
	require.Zero(t, ends())
}

// A program that comes during a rehearsal starts when that is over.
func TestAProgramWaitsForTheRehearsal(t *testing.T) {
	s, ends := rehearsals(t, "0.5")
	c := s.openUnbound()
	go func() { _, _ = c.Prepare(deadline(t), notingSpare) }() // it is the rehearsal that counts
	require.Eventually(t, func() bool {
		st, err := c.Status(deadline(t))
		require.NoError(t, err)
		return st.Execs == 1
	}, soon, look, "no rehearsal begins")
	require.Zero(t, ends())
	r := run(t, c, "x", python(), "import os\nprint(sorted(os.listdir()))")
	require.Equal(t, "['main.py']\n", r.stdout, "it is alone in the workspace")
	require.GreaterOrEqual(t, ends(), 1, "the rehearsal had ended")
}

func TestEchoOfTheChannel(t *testing.T) {
	c := startRunner(t, plainPath).openUnbound()
	for _, text := range []string{"first", "second"} {
		s, err := c.Echo(deadline(t), wire.Frame{Kind: wire.KindStdin, Offset: 7, Payload: []byte(text)})
		require.NoError(t, err)
		defer s.Close()
		f, err := s.Recv()
		require.NoError(t, err)
		require.Equal(t, text, string(f.Payload))
		require.EqualValues(t, 7, f.Offset)
		require.NoError(t, s.Send(wire.Frame{Kind: wire.KindStdin, Payload: []byte("again")}))
		f, err = s.Recv()
		require.NoError(t, err)
		require.Equal(t, "again", string(f.Payload))
	}
}

// Nor does the rehearsal of another language, which waited for the same, come before it.
func TestNothingRunsBesideARehearsal(t *testing.T) {
	needInterpreter(t, "python")
	needInterpreter(t, "node")
	python := modules(t, map[string]string{"slow": "import atexit, time\natexit.register(time.sleep, 0.8)"})
	node := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(node, "slow.js"), []byte(`
const busy = (ms) => { const end = Date.now() + ms; while (Date.now() < end); };
busy(400);
process.on('exit', () => busy(500));`), 0o600))
	c := startRunner(t, plainPath, "PYTHONPATH="+python, "NODE_PATH="+node).openUnbound()
	slow := []string{"slow"}
	go func() { // it is the rehearsals that count
		_, _ = c.Prepare(deadline(t), channel.Prepare{Spares: []string{"python", "node"}, Preload: map[string][]string{"python": slow, "node": slow}})
	}()
	require.Eventually(t, func() bool {
		st, err := c.Status(deadline(t))
		require.NoError(t, err)
		return st.Execs > 0
	}, soon, look, "no rehearsal begins")
	r := run(t, c, "x", wire.Program{Argv: []string{"sh", "-c", "sleep 0.1; ls"}}, "")
	require.Empty(t, r.stdout, "a rehearsal's script lies beside the program")
}

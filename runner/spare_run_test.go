package runner_test

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// modules is a directory with modules for Python.
func modules(t *testing.T, sources map[string]string) string {
	t.Helper()
	dir := t.TempDir()
	for name, source := range sources {
		require.NoError(t, os.WriteFile(filepath.Join(dir, name+".py"), []byte(source), 0o600))
	}
	// A change shortly before a spare's start counts as one after it.
	require.Eventually(t, func() bool {
		st, err := os.Stat(dir)
		require.NoError(t, err)
		return time.Since(st.ModTime()) > 100*time.Millisecond
	}, soon, look)
	return dir
}

func TestSparePreload(t *testing.T) {
	needInterpreter(t, "python")
	dir := modules(t, map[string]string{
		"good":     "value = 5",
		"noisy":    "print('noise')",
		"failing":  "raise ValueError('no')",
		"ending":   "import os; os._exit(3)",
		"hanging":  "import threading; threading.Event().wait()",
		"package_": "import json",
	})
	c := startRunner(t, "SANDBOX_SPARES=python", plainPath, "PYTHONPATH="+dir, "SANDBOX_TEST_HASTE=1",
		"SANDBOX_PRELOAD=python:good,python:noisy,python:missing.sub,python:failing,python:ending,python:hanging,python:package_,node:x").open()
	s := waitSpare(t, c, "python")
	problems := strings.Join(s.Problems, "\n")
	require.Len(t, s.Problems, 5, problems)
	for name, problem := range map[string]string{
		"noisy": "prints", "missing.sub": "ModuleNotFoundError", "failing": "ValueError: no", "ending": "ended the interpreter", "hanging": "took longer than",
	} {
		require.Regexp(t, "preload "+name+": .*"+problem, problems)
	}
	r := run(t, c, "x", python(), "import sys, os\nprint([m for m in ('good', 'package_', 'json', 'noisy', 'failing', 'hanging') if m in sys.modules], os.environ['PYTHONPATH'], sys.path[1])")
	require.Equal(t, fmt.Sprintf("['good', 'package_', 'json'] %s %s\n", dir, dir), r.stdout)
	require.Empty(t, r.stderr)
	require.EqualValues(t, 1, spareStatus(t, c, "python").Used)
}

func TestSparePreloadNode(t *testing.T) {
	needInterpreter(t, "node")
	dir := t.TempDir()
	require.NoError(t, os.WriteFile(filepath.Join(dir, "good.js"), []byte("exports.v = 6"), 0o600))
	require.NoError(t, os.WriteFile(filepath.Join(dir, "noisy.js"), []byte("console.log('noise')"), 0o600))
	c := startRunner(t, "SANDBOX_SPARES=node", plainPath, "NODE_PATH="+dir, "NODE_OPTIONS=--no-deprecation",
		"SANDBOX_PRELOAD=node:good,node:noisy,node:missing").open()
	s := waitSpare(t, c, "node")
	require.Len(t, s.Problems, 2, s.Problems)
	r := run(t, c, "x", wire.Program{Language: "node"}, "const path = require('path');\nconsole.log(Object.keys(require.cache).map((k) => path.basename(k)), require('good').v, process.env.NODE_OPTIONS, process.noDeprecation);")
	require.Equal(t, "[ 'good.js', 'main.js' ] 6 --no-deprecation true\n", r.stdout, r.stderr)
	require.EqualValues(t, 1, spareStatus(t, c, "node").Used)
}

// What an interpreter used before the hand-over is not the program's.
func TestSpareUsage(t *testing.T) {
	needInterpreter(t, "python")
	dir := modules(t, map[string]string{"burn": "import time\nwhile time.process_time() < 0.5: pass"})
	c := startRunner(t, "SANDBOX_SPARES=python", plainPath, "PYTHONPATH="+dir, "SANDBOX_PRELOAD=python:burn").open()
	waitSpare(t, c, "python")
	r := run(t, c, "idle", python(), "import time\nprint(time.process_time() >= 0.5)")
	require.Equal(t, "True\n", r.stdout, "a spare was used")
	require.Less(t, r.ending.Usage.UserMS+r.ending.Usage.SystemMS, int64(250))
	waitSpare(t, c, "python")
	r = run(t, c, "busy", python(), "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass")
	require.InDelta(t, 350, r.ending.Usage.UserMS+r.ending.Usage.SystemMS, 150)
	require.NotZero(t, r.ending.Usage.MaxRSSBytes)
}

// Signals and the end of an exec reach a program in a spare as they reach any.
func TestSpareSignals(t *testing.T) {
	needInterpreter(t, "python")
	c := startRunner(t, "SANDBOX_SPARES=python", plainPath).open()
	for name, tc := range map[string]struct {
		frame          wire.Frame
		reason         wire.Reason
		signal, stderr string
	}{
		"interrupt": {wire.JSONFrame(wire.KindSignal, 0, wire.Signal{Name: "SIGINT"}), wire.ReasonSignaled, "SIGINT", "KeyboardInterrupt"},
		"kill":      {wire.JSONFrame(wire.KindSignal, 0, wire.Signal{Name: "SIGKILL"}), wire.ReasonSignaled, "SIGKILL", ""},
		"cancel":    {wire.Frame{Kind: wire.KindCancel}, wire.ReasonCanceled, "", ""},
	} {
		t.Run(name, func(t *testing.T) {
			used := waitSpare(t, c, "python").Used
			s, err := c.Exec(deadline(t), name, start(python()), []byte("import sys, time\nsys.stdout.write('up')\ntime.sleep(60)"))
			require.NoError(t, err)
			defer s.Close()
			for {
				f, err := s.Recv()
				require.NoError(t, err)
				if f.Kind == wire.KindStdout {
					require.Equal(t, "up", string(f.Payload))
					break
				}
			}
			require.NoError(t, s.Send(tc.frame))
			var stderr string
			for {
				f, err := s.Recv()
				require.NoError(t, err)
				if f.Kind == wire.KindStderr {
					stderr += string(f.Payload)
				}
				if f.Kind == wire.KindExit {
					require.Contains(t, string(f.Payload), fmt.Sprintf("%q", tc.reason))
					require.Contains(t, string(f.Payload), tc.signal)
					require.Contains(t, stderr, tc.stderr)
					require.NoError(t, s.Send(wire.Frame{Kind: wire.KindDone}))
					break
				}
			}
			require.Equal(t, used+1, spareStatus(t, c, "python").Used)
		})
	}
}

// Must hold: what a program in a spare leaves behind ends, also when nobody waits for it:
// its outputs are closed, and its ending has been confirmed.
func TestWhatASpareLeavesBehindEnds(t *testing.T) {
	needInterpreter(t, "python")
	c := startRunner(t, "SANDBOX_SPARES=python", plainPath).open()
	waitSpare(t, c, "python")
	s, err := c.Exec(deadline(t), "a", start(python()), []byte(`
import os, time
pid = os.fork()
if pid == 0:
    for fd in range(3):
        os.close(fd)
    time.sleep(60)
    os._exit(0)
print(pid)
`))
	require.NoError(t, err)
	defer s.Close()
	r := collect(t, s)
	require.EqualValues(t, 1, spareStatus(t, c, "python").Used)
	pid, err := strconv.Atoi(strings.TrimSpace(r.stdout))
	require.NoError(t, err, r.stderr)
	require.Eventually(t, func() bool { return unix.Kill(pid, 0) != nil }, 5*time.Second, 10*time.Millisecond)
}

// A process that a program in a spare left in a session of its own is that exec's:
// it ends with it, and not with another.
func TestSpareDescendants(t *testing.T) {
	needInterpreter(t, "python")
	c := startRunner(t, "SANDBOX_SPARES=python", plainPath).open()
	waitSpare(t, c, "python")
	st := start(python())
	st.Program.Stdin = true
	s, err := c.Exec(deadline(t), "a", st, []byte(`
import os, time
r, w = os.pipe()
if os.fork() == 0:
    os.setsid()
    pid = os.fork()
    if pid:
        os.write(w, str(pid).encode())
        os._exit(0)
    time.sleep(60)
os.wait()
pid = int(os.read(r, 20))
print(pid)
input()
os.kill(pid, 0)
print("lives")
`))
	require.NoError(t, err)
	defer s.Close()
	var pid string
	for pid == "" {
		f, err := s.Recv()
		require.NoError(t, err)
		if f.Kind == wire.KindStdout {
			pid = strings.TrimSpace(string(f.Payload))
		}
	}
	require.EqualValues(t, 1, spareStatus(t, c, "python").Used)
	require.Equal(t, "x\n", run(t, c, "b", sh("echo x"), "").stdout)
	require.NoError(t, s.Send(wire.Frame{Kind: wire.KindStdin, Payload: []byte("\n")}))
	var out string
	for {
		f, err := s.Recv()
		require.NoError(t, err)
		if f.Kind == wire.KindStdout {
			out += string(f.Payload)
		}
		if f.Kind == wire.KindExit {
			break
		}
	}
	require.Equal(t, "lives", strings.TrimSpace(out))
	require.Eventually(t, func() bool {
		_, err := os.Stat("/proc/" + pid)
		return errors.Is(err, os.ErrNotExist)
	}, soon, look, "it lives on")
}

// Spares count for no limit, and give way to a program that needs the memory.
func TestSpareLimits(t *testing.T) {
	needInterpreter(t, "node")
	s := startRunner(t, "SANDBOX_SPARES=node", plainPath, "SANDBOX_PROCESS_LIMIT=4", "SANDBOX_PROGRAM_MEMORY_LIMIT=100000000")
	c := s.open()
	waitSpare(t, c, "node")
	pid := s.spareProcess() // it has more threads than the limit allows
	r := run(t, c, "few", sh("for i in 1 2 3 4; do sleep 0.05; done; echo done"), "")
	require.Equal(t, "done\n", r.stdout, r.ending)
	require.True(t, spareStatus(t, c, "node").Ready)
	require.Equal(t, pid, s.spareProcess())
	r = run(t, c, "big", sh("x=$(head -c 200000000 /dev/zero | tr '\\0' x); sleep 60"), "")
	require.Equal(t, wire.ReasonOOM, r.ending.Reason)
	waitSpare(t, c, "node")
	require.NotEqual(t, pid, s.spareProcess(), "it gave way, and came back")
}

// A spare starts with a low priority where the program can get its own back.
func TestSparePriority(t *testing.T) {
	needInterpreter(t, "python")
	if os.Getuid() != 0 {
		t.Skip("only root may raise a priority")
	}
	s := startRunner(t, "SANDBOX_SPARES=python", plainPath)
	c := s.open()
	waitSpare(t, c, "python")
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", s.spareProcess()))
	require.NoError(t, err)
	require.Equal(t, "19", strings.Fields(string(stat))[18])
	r := run(t, c, "x", python(), "import os\nprint(os.nice(0))")
	require.Equal(t, "0\n", r.stdout)
	require.EqualValues(t, 1, spareStatus(t, c, "python").Used)
}

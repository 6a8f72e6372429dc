package runner_test

import (
	"archive/zip"
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"golang.org/x/sys/unix"

	"github.com/sandbox-broker/sandbox-broker/internal/channel"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// plainPath finds the interpreters themselves, not a developer's wrappers of them,
// which take longer than the interpreters.
const plainPath = "PATH=/usr/local/bin:/usr/bin:/bin"

var interpreters = map[string]string{"python": "python3", "node": "node", "shell": "bash"}

func needInterpreter(t testing.TB, lang string) {
	t.Helper()
	if _, err := exec.LookPath(interpreters[lang]); err != nil {
		t.Skipf("this machine has no %s", interpreters[lang])
	}
}

const (
	soon = 30 * time.Second
	look = 2 * time.Millisecond
)

func spareStatus(t testing.TB, c *channel.Client, lang string) channel.Spare {
	t.Helper()
	st, err := c.Status(t.Context())
	require.NoError(t, err)
	return st.Spares[lang]
}

// waitSpare waits until a spare is ready, and returns the status.
func waitSpare(t testing.TB, c *channel.Client, lang string) channel.Spare {
	t.Helper()
	var s channel.Spare
	require.Eventually(t, func() bool {
		s = spareStatus(t, c, lang)
		return s.Ready
	}, soon, look, "no spare gets ready")
	return s
}

// spareProcess is the process of the runner's spare interpreter; 0: there is none.
func (s *sandbox) spareProcess() int {
	s.t.Helper()
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", s.cmd.Process.Pid))
	require.NoError(s.t, err)
	for _, task := range tasks {
		text, _ := os.ReadFile(task)
		for _, field := range strings.Fields(string(text)) {
			env, _ := os.ReadFile(filepath.Join("/proc", field, "environ"))
			if bytes.Contains(env, []byte("SANDBOX_EXEC_ID=spare/")) {
				pid, err := strconv.Atoi(field)
				require.NoError(s.t, err)
				return pid
			}
		}
	}
	return 0
}

func python(args ...string) wire.Program { return wire.Program{Language: "python", Argv: args} }

// What an interpreter reads at its start makes a program get its own.
func TestSpareOrFresh(t *testing.T) {
	needInterpreter(t, "python")
	s := startRunner(t, "SANDBOX_SPARES=python", plainPath)
	c := s.open()
	require.NoError(t, os.Mkdir(filepath.Join(s.dir, "sub"), 0o700))
	many := make([]string, 3000)
	for i := range many {
		many[i] = strings.Repeat("x", 20)
	}
	type request struct {
		env  map[string]string
		dir  string
		args []string
		used bool
	}
	requests := map[string]request{
		"nothing":       {used: true},
		"variables":     {env: map[string]string{"API_KEY": "k", "PYTHO": "x", "LANGUAGES": "x", "EMPTY": ""}, used: true},
		"the workspace": {dir: s.dir + "/", used: true},
		"a directory":   {dir: "sub"},
		"a long line":   {args: many},
	}
	for _, name := range []string{"PYTHONPATH", "PYTHONHASHSEED", "LD_LIBRARY_PATH", "LC_ALL", "LANG", "LANGUAGE", "MALLOC_ARENA_MAX", "GLIBC_TUNABLES", "HOME", "TZ", "SANDBOX_EXEC_ID"} {
		requests[name] = request{env: map[string]string{name: ""}}
	}
	requests["PATH"] = request{env: map[string]string{"PATH": "/usr/bin:/bin"}}
	for name, r := range requests {
		t.Run(name, func(t *testing.T) {
			before := waitSpare(t, c, "python")
			p := python(r.args...)
			p.Env, p.Dir = r.env, r.dir
			res := run(t, c, strings.ReplaceAll(name, " ", "-"), p, "import sys\nprint(len(sys.argv))")
			require.Equal(t, fmt.Sprintln(len(r.args)+1), res.stdout, res.stderr)
			require.Equal(t, r.used, spareStatus(t, c, "python").Used == before.Used+1)
		})
	}
	t.Run("an archive", func(t *testing.T) {
		var b bytes.Buffer
		z := zip.NewWriter(&b)
		f, err := z.Create("__main__.py")
		require.NoError(t, err)
		_, err = f.Write([]byte("print('unpacked')"))
		require.NoError(t, errors.Join(err, z.Close()))
		before := waitSpare(t, c, "python")
		require.Equal(t, "unpacked\n", run(t, c, "archive", python(), b.String()).stdout)
		require.Equal(t, before.Used, spareStatus(t, c, "python").Used)
	})
	t.Run("the script's name is taken", func(t *testing.T) {
		require.NoError(t, os.WriteFile(filepath.Join(s.dir, "main.py"), nil, 0o600))
		before := waitSpare(t, c, "python")
		require.Contains(t, run(t, c, "taken", python(), "print(__file__)").stdout, "main-2.py")
		require.Equal(t, before.Used, spareStatus(t, c, "python").Used)
	})
}

// No spares are kept unless they are asked for.
func TestNoSpares(t *testing.T) {
	c := startRunner(t, plainPath).open()
	st, err := c.Status(deadline(t))
	require.NoError(t, err)
	require.Empty(t, st.Spares)
}

// What a program installs for the start of the next ones runs there.
func TestAnInstalledStartRuns(t *testing.T) {
	needInterpreter(t, "python")
	for _, name := range []string{"usercustomize", "sitecustomize"} {
		t.Run(name, func(t *testing.T) {
			home := t.TempDir()
			c := startRunner(t, "SANDBOX_SPARES=python", plainPath, "HOME="+home, "PYTHONNOUSERSITE=").open()
			waitSpare(t, c, "python")
			r := run(t, c, "install", python(), "import site, os\nos.makedirs(site.USER_SITE)\nopen(site.USER_SITE + '/"+name+".py', 'w').write('print(1)')")
			require.Empty(t, r.stderr)
			want := "1\n2\n"
			if name == "sitecustomize" && hostHas(t, "sitecustomize") {
				want = "2\n" // the image's own comes first
			}
			for i := range 3 {
				if i > 0 {
					waitSpare(t, c, "python")
				}
				require.Equal(t, want, run(t, c, fmt.Sprint("use-", i), python(), "print(2)").stdout)
			}
		})
	}
}

// hostHas reports whether this machine's Python has a module.
func hostHas(t *testing.T, module string) bool {
	t.Helper()
	cmd := exec.Command("/usr/bin/env", "python3", "-c", "import "+module)
	cmd.Env = []string{plainPath, "HOME=/nonexistent"}
	return cmd.Run() == nil
}

// A spare from before an installation would not find what was installed.
func TestSpareIsNotStale(t *testing.T) {
	needInterpreter(t, "python")
	home := t.TempDir()
	c := startRunner(t, "SANDBOX_SPARES=python", plainPath, "HOME="+home, "PYTHONNOUSERSITE=").open()
	before := waitSpare(t, c, "python")
	r := run(t, c, "install", python(), "import site, os\nos.makedirs(site.USER_SITE)\nopen(site.USER_SITE + '/installed.py', 'w').write('v = 7')")
	require.Empty(t, r.stderr)
	// This one started while the directory was there, or was made stale by it.
	r = run(t, c, "use", python(), "import installed\nprint(installed.v)")
	require.Equal(t, "7\n", r.stdout, r.stderr)
	waitSpare(t, c, "python")
	r = run(t, c, "sh", sh("cd "+home+"/.local/lib/python*/site-packages && mkdir more && echo 'm = 8' > more/other.py && echo $PWD/more > more.pth"), "")
	require.Empty(t, r.stderr)
	used := spareStatus(t, c, "python").Used
	r = run(t, c, "pth", python(), "import other\nprint(other.m)")
	require.Equal(t, "8\n", r.stdout, r.stderr)
	require.Equal(t, used, spareStatus(t, c, "python").Used, "the stale one was not used")
	require.Greater(t, used, before.Used)
	// The next one is good again, once the change is older than it.
	n := 0
	require.Eventually(t, func() bool {
		waitSpare(t, c, "python")
		n++
		r = run(t, c, fmt.Sprint("again-", n), python(), "import other\nprint(other.m)")
		return r.stdout == "8\n" && spareStatus(t, c, "python").Used > used
	}, soon, look)
}

// A spare that dies is replaced, and nobody sees it.
func TestSpareIsReplaced(t *testing.T) {
	needInterpreter(t, "python")
	s := startRunner(t, "SANDBOX_SPARES=python", plainPath)
	c := s.open()
	for range 3 {
		waitSpare(t, c, "python")
		pid := s.spareProcess()
		require.NotZero(t, pid)
		require.NoError(t, unix.Kill(pid, unix.SIGKILL))
		require.Eventually(t, func() bool {
			now := s.spareProcess()
			return now != 0 && now != pid && spareStatus(t, c, "python").Ready
		}, soon, look)
	}
	require.Equal(t, "1\n", run(t, c, "x", python(), "print(1)").stdout)
	require.EqualValues(t, 1, spareStatus(t, c, "python").Used)
}

// An interpreter that cannot wait is not tried for ever, and programs still run.
func TestSparesAreGivenUp(t *testing.T) {
	bin := t.TempDir()
	script := "#!/bin/sh\ntest -n \"$PYTHONPATH\" && exit 1\nexec /usr/bin/env PATH=/usr/local/bin:/usr/bin:/bin python3 \"$@\"\n"
	require.NoError(t, os.WriteFile(filepath.Join(bin, "python3"), []byte(script), 0o700))
	s := startRunner(t, "SANDBOX_SPARES=python,cobol", "PATH="+bin+":/usr/bin:/bin")
	c := s.open()
	require.Eventually(t, func() bool {
		return strings.Contains(s.log.String(), "too many failed in a row")
	}, soon, look)
	require.NotEmpty(t, spareStatus(t, c, "python").Problems)
	require.Contains(t, s.log.String(), "cobol")
	require.Equal(t, "1\n", run(t, c, "x", python(), "print(1)").stdout)
}

// A spare ends with its runner, even if that is killed.
func TestSpareEndsWithTheRunner(t *testing.T) {
	for lang := range interpreters {
		needInterpreter(t, lang)
		s := startRunnerIn(t, t.TempDir(), lang, "SANDBOX_SPARES="+lang, plainPath)
		waitSpare(t, s.open(), lang)
		pid := s.spareProcess()
		require.NotZero(t, pid)
		require.NoError(t, s.cmd.Process.Kill())
		require.Eventually(t, func() bool {
			stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
			return err != nil || bytes.Contains(stat, []byte(") Z"))
		}, soon, look)
	}
}

package runner

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"time"
	"unicode/utf8"

	"golang.org/x/sys/unix"
)

// startVars are variables that an interpreter, its C library or what it loads at
// its start reads at its start. An exec that sets one gets a start of its own. One
// that ends in * stands for all that begin so.
var startVars = []string{
	// The loader and the C library: what is loaded, memory, locale, conversions.
	"LD_*", "MALLOC_*", "GLIBC_*", "GCONV_PATH", "LC_*", "LANG", "LANGUAGE", "LOCPATH", "NLSPATH",
	// Python computes time.tzname when it starts, Node asks ICU.
	"TZ", "TZDIR",
	// Which interpreter is found, and where its users' packages are.
	"PATH", "HOME",
	"PYTHON*", "__PYVENV_LAUNCHER__",
	// Files *.pth of setuptools and coverage, which run when Python starts.
	"SETUPTOOLS_*", "COVERAGE_*", "COV_CORE_*",
	"NODE_*", "UV_*", "ICU_*", "OPENSSL_*", "SSL_*",
	// Where nothing is known, as for the mark, the start decides which one counts.
	"SANDBOX_*",
}

// readAtStart reports whether a variable is one of startVars.
func readAtStart(name string) bool {
	for _, v := range startVars {
		prefix, all := strings.CutSuffix(v, "*")
		if name == v || all && strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}

// fits reports whether a program would see no difference between the spare and an
// interpreter of its own, as far as its request tells.
func (sp *spare) fits(c *command, stdin bool) bool {
	switch l := languages[sp.language]; {
	case stdin && !l.spareStdin:
		return false
	case l.spareBare != "" && len(c.args)+len(c.extra) > 0:
		return false
	case c.archive: // a spare has noted that its script is none
		return false
	case filepath.Base(c.scratch) != l.script: // the interpreter knows this name already
		return false
	case c.path != sp.path || !os.SameFile(c.dirInfo, sp.dir):
		return false
	}
	size := 0
	for _, a := range c.args {
		if !plain(a) {
			return false
		}
		size += len(a) + 1
	}
	names := map[string]bool{}
	for _, v := range c.env {
		name, _, ok := strings.Cut(v, "=")
		if !ok || name == "" || names[name] || !plain(v) {
			return false
		}
		names[name] = true
		size += len(v) + 1
	}
	for name := range c.extra {
		if readAtStart(name) || strings.Contains(name, "=") {
			return false
		}
	}
	return size < maxHandOver/2 // names of variables to remove come twice
}

// plain reports whether a string can be handed over.
func plain(s string) bool { return utf8.ValidString(s) && !strings.Contains(s, "\x00") }

// watched is a file that an interpreter's start depends on.
type watched struct {
	path  string
	there bool
}

// staleMargin is the coarseness of times in file systems.
const staleMargin = 50 * time.Millisecond

// watch notes a file, unless no program can change it.
func (sp *spare) watch(path string) {
	_, err := os.Stat(path)
	there := err == nil
	if there && !canWrite(path) || !there && !canAppear(path) {
		return
	}
	sp.watched = append(sp.watched, watched{path: path, there: there})
}

// errWorkspaceOnPath says that a start depends on the directory that scripts are written
// to. A spare could not tell a script from a module that a program has put there.
var errWorkspaceOnPath = errors.New("the workspace is on sys.path before the script's directory is added: " +
	"take it, or an empty entry, out of the image's PYTHONPATH; programs find what is beside them without it")

// canAppear reports whether a program could make a file of that name.
func canAppear(path string) bool {
	for path != filepath.Dir(path) {
		path = filepath.Dir(path)
		if _, err := os.Stat(path); err == nil {
			return canWrite(path)
		}
	}
	return false
}

// stale reports whether the interpreter would start otherwise now: programs of the
// lease have installed something.
func (sp *spare) stale() bool {
	for _, w := range sp.watched {
		var st unix.Stat_t
		err := unix.Stat(w.path, &st)
		changed := err == nil && time.Unix(st.Ctim.Unix()).After(sp.began.Add(-staleMargin))
		if (err == nil) != w.there || changed {
			return true
		}
	}
	st, err := os.Stat(sp.path)
	return err != nil || !os.SameFile(st, sp.program) || !st.ModTime().Equal(sp.program.ModTime())
}

// hasVar reports whether a variable is set, be it to nothing.
func hasVar(env []string, name string) bool {
	for _, v := range env {
		if strings.HasPrefix(v, name+"=") {
			return true
		}
	}
	return false
}

// lowestPriority is that of a spare that starts, where it can be raised again.
const lowestPriority = 19

// canRenice reports whether this process may raise a priority that it lowered: a
// program must not run with that of a spare.
func canRenice() bool {
	if inGVisor() {
		return false // it notes a priority, and schedules as before
	}
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var caps [2]unix.CapUserData
	if unix.Capget(&header, &caps[0]) == nil && caps[0].Effective&(1<<unix.CAP_SYS_NICE) != 0 {
		return true
	}
	var limit unix.Rlimit
	own, err := ownPriority()
	return err == nil && unix.Getrlimit(unix.RLIMIT_NICE, &limit) == nil && int64(limit.Cur) >= int64(20-own)
}

// ownPriority is this process's, which programs have as well.
func ownPriority() (int, error) {
	n, err := unix.Getpriority(unix.PRIO_PROCESS, 0)
	return 20 - n, err // the system call's form is 1 to 40
}

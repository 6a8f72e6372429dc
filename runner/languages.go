package runner

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// language is how code in it is run: as a file of its own.
type language struct {
	script      string   // the file's name; a number joins it when it is taken
	interpreter []string // the first one found on PATH is used
	flags       []string // before the file's name
	// spare is how an interpreter is made to wait for code; nil: there are no spares.
	spare      func(base []string, mark string) (waiting, error)
	spareStdin bool // a spare can be given input
	// spareBare is the one interpreter that can be made to wait, if it is not each;
	// a program with arguments or variables then gets one of its own.
	spareBare string
	// rehearsal is the program of a rehearsal: it writes to both outputs.
	rehearsal string
}

// waiting is what makes an interpreter wait.
type waiting struct {
	env     []string
	archive int    // a descriptor to pass on, or -1
	dir     string // where to start it; empty: in the workspace
	watched []string
}

// languages are those this runner knows by name.
var languages = map[string]language{
	// -u: output must be seen as it is printed, not when a buffer is full.
	"python": {script: "main.py", interpreter: []string{"python3", "python"}, flags: []string{"-u"}, spare: pythonSpare, spareStdin: true, rehearsal: "import sys\nprint(1 + 1)\nprint(1, file=sys.stderr)"},
	"node":   {script: "main.js", interpreter: []string{"node", "nodejs"}, spare: nodeSpare, rehearsal: "console.log(1 + 1); console.error(1)"},
	"shell":  {script: "main.sh", interpreter: []string{"bash", "sh"}, spare: bashSpare, spareStdin: true, spareBare: "bash", rehearsal: "echo 2; echo 1 >&2"},
}

// endOfDirectory is in every ZIP archive, which Python runs as well as code: see
// "end of central directory" in PKWARE's APPNOTE, 4.3.16.
var endOfDirectory = []byte("PK\x05\x06")

// maxScripts bounds the names tried for a script.
const maxScripts = 1000

// command is what to execute.
type command struct {
	path string // absolute
	argv []string
	dir  string
	env  []string
	// scratch is a file that is removed at the exec's end if it is still there: the
	// script of code, or what a file write has not put in its place. Empty: none.
	scratch string

	// What decides about a spare interpreter, see spare.fits.
	language string            // empty: no code in a language
	args     []string          // after the script's name
	extra    map[string]string // the request's variables: the last of env but its mark
	dirInfo  os.FileInfo       // of dir
	archive  bool              // Python may take the script for one
}

// resolve turns a program into a command. The code, if any, is written into the
// working directory, so that it finds the files beside it as any script does.
func (s *supervisor) resolve(id string, p *wire.Program, code []byte) (command, error) {
	c := command{dir: s.opts.Workspace, env: environ(s.opts.Environ, p.Env, id)}
	if p.Dir != "" {
		c.dir = p.Dir
		if !filepath.IsAbs(c.dir) {
			c.dir = filepath.Join(s.opts.Workspace, c.dir)
		}
	}
	st, err := os.Stat(c.dir)
	if err != nil || !st.IsDir() {
		return c, wire.Invalid("program.dir", 0, "the working directory %q does not exist in the sandbox", p.Dir)
	}
	if p.File != nil {
		return c, s.resolveFile(&c, id, p.File)
	}
	if len(p.Argv) > 0 && p.Language == "" {
		c.argv = p.Argv
		return c, c.lookPath()
	}
	l, ok := languages[p.Language]
	if !ok {
		return c, wire.Invalid("program.language", 0, "this sandbox's runner does not know the language %q", p.Language)
	}
	if !c.find(l) {
		return c, wire.Invalid("program.language", 0, "there is no %s on the program's PATH in the sandbox, for the language %s", strings.Join(l.interpreter, " or "), p.Language)
	}
	name, err := writeScript(c.dir, l.script, code)
	if err != nil {
		return c, err
	}
	c.scratch = filepath.Join(c.dir, name)
	c.language, c.args, c.extra, c.dirInfo = p.Language, p.Argv, p.Env, st
	c.archive = bytes.Contains(code, endOfDirectory)
	c.argv = append(append(append(c.argv, l.flags...), name), p.Argv...)
	return c, nil
}

// known lists the languages whose interpreter is there, sorted.
func (s *supervisor) known() []string {
	var names []string
	for name, l := range languages {
		c := command{dir: s.opts.Workspace, env: s.opts.Environ}
		if c.find(l) {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return names
}

// writeScript writes code to a new file in dir, never over one that is there.
func writeScript(dir, name string, code []byte) (string, error) {
	base, ext := strings.TrimSuffix(name, filepath.Ext(name)), filepath.Ext(name)
	for i := 1; i <= maxScripts; i++ {
		if i > 1 {
			name = fmt.Sprintf("%s-%d%s", base, i, ext)
		}
		path := filepath.Join(dir, name)
		err := createRaw(path, code, 0o600)
		if errors.Is(err, fs.ErrExist) {
			continue
		}
		if err != nil {
			return "", wire.Errorf(wire.CodeUnavailable, "the code could not be written to the workspace: %v", err)
		}
		return name, nil
	}
	return "", wire.Errorf(wire.CodeConflict, "the workspace holds %d files named like %s", maxScripts, name)
}

// programEnviron is the image's environment without what is there for the
// runner (SANDBOX_…) or about the cluster (KUBERNETES_…).
func programEnviron(env []string) []string {
	var out []string
	for _, v := range env {
		if !strings.HasPrefix(v, "SANDBOX_") && !strings.HasPrefix(v, "KUBERNETES_") {
			out = append(out, v)
		}
	}
	if lookup(out, "PATH") == "" {
		out = append(out, "PATH=/usr/local/bin:/usr/bin:/bin")
	}
	return out
}

// environ lays the request's variables and the exec's mark over the base.
func environ(base []string, extra map[string]string, id string) []string {
	env := make([]string, 0, len(base)+len(extra)+1)
	for _, v := range base {
		name, _, _ := strings.Cut(v, "=")
		if _, ok := extra[name]; !ok {
			env = append(env, v)
		}
	}
	for _, k := range slices.Sorted(maps.Keys(extra)) {
		env = append(env, k+"="+extra[k])
	}
	return append(env, execVar+"="+id)
}

func lookup(env []string, name string) string {
	for _, v := range env {
		if value, ok := strings.CutPrefix(v, name+"="); ok {
			return value
		}
	}
	return ""
}

package runner

import (
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// find looks for a language's interpreter and makes it the command.
func (c *command) find(l language) bool {
	for _, name := range l.interpreter {
		c.argv = []string{name}
		if c.lookPath() == nil {
			return true
		}
	}
	return false
}

// lookPath finds argv[0] as execvp(3) would, in the program's PATH and directory.
func (c *command) lookPath() error {
	name := c.argv[0]
	if strings.Contains(name, "/") {
		c.path = name
		if !filepath.IsAbs(name) {
			c.path = filepath.Join(c.dir, name)
		}
		if err := unix.Access(c.path, unix.X_OK); err != nil {
			return wire.Invalid("program.argv", 0, "%q cannot be executed in the sandbox: %v", name, err)
		}
		return nil
	}
	where := onPath{name: name, path: lookup(c.env, "PATH")}
	var ok bool
	if c.path, ok = settled.find(where); ok {
		return nil
	}
	changes := false
	for _, dir := range filepath.SplitList(where.path) {
		path := filepath.Join(dir, name)
		if !filepath.IsAbs(dir) { // as in the program's directory, not in this process's
			path, changes = filepath.Join(c.dir, path), true
		}
		changes = changes || canChange(path)
		if st, err := os.Stat(path); err == nil && !st.IsDir() && unix.Access(path, unix.X_OK) == nil {
			c.path = path
			if !changes {
				settled.keep(where, path)
			}
			return nil
		}
	}
	return wire.Invalid("program.argv", 0, "%q is not found on the sandbox's PATH: %v", name, exec.ErrNotFound)
}

// onPath is a name that is looked for in the directories of a PATH.
type onPath struct{ name, path string }

// settled has where names were found that no program can make be found elsewhere.
var settled places

// maxPlaces bounds what is remembered: names and PATHs may be a request's.
const maxPlaces = 64

type places struct {
	mu sync.Mutex
	at map[onPath]string
}

func (p *places) find(w onPath) (path string, ok bool) {
	p.mu.Lock()
	defer p.mu.Unlock()
	path, ok = p.at[w]
	return path, ok
}

func (p *places) keep(w onPath, path string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.at == nil {
		p.at = map[onPath]string{}
	}
	if len(p.at) < maxPlaces {
		p.at[w] = path
	}
}

// canChange reports whether the programs, which have this process's rights, can put
// something else at a path: in its directory, or in the place of one above.
func canChange(path string) bool {
	for p := path; p != "/"; p = filepath.Dir(p) {
		if canWrite(filepath.Dir(p)) {
			return true
		}
		if st, err := os.Lstat(p); err != nil || st.Mode()&fs.ModeSymlink == 0 {
			continue
		}
		real, err := filepath.EvalSymlinks(p)
		if err != nil || canChange(real) { // what it leads to is not there yet, or can change
			return true
		}
	}
	return false
}

// canWrite reports whether this process can write to a directory, or give itself the right.
func canWrite(dir string) bool {
	err := unix.Access(dir, unix.W_OK)
	if err == nil || !errors.Is(err, unix.EACCES) {
		return err == nil // else it does not exist, or cannot be written to by anybody
	}
	var st unix.Stat_t
	return unix.Stat(dir, &st) != nil || int(st.Uid) == os.Geteuid()
}

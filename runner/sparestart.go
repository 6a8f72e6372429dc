package runner

import (
	"archive/zip"
	"bytes"
	_ "embed" // the interpreters' parts
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// Descriptors of a spare interpreter beside 0, 1 and 2. They are high, so that
// those which an interpreter opens at its start get the numbers they always get.
const (
	spareControl = 100 + iota // the socket to the runner
	spareArchive              // Python and bash: what they load to wait
	spareStdin                // the pipe that may become its standard input
	spareFiles                // one more than the highest
)

// spareFile is what an interpreter finds at spareArchive.
const spareFile = "/proc/self/fd/101"

// unused stands for a descriptor that is closed in the child.
const unused = ^uintptr(0)

// spare is an interpreter that was started ahead.
type spare struct {
	language string
	mark     string // what its environment in /proc has for an exec's ID
	path     string
	program  os.FileInfo // of path
	dir      os.FileInfo // where it was started
	pid      int
	ours     [3]*os.File
	control  *os.File
	over     []*os.File // no longer needed since the hand-over
	reniced  bool
	began    time.Time
	watched  []watched
	noise    int // bytes that it had written when it said hello

	status chan exitStatus // its end
	dead   chan struct{}   // closed after that
	taken  chan struct{}   // closed when the nursery has given it away
	before process         // what it was at the hand-over
}

var (
	errNoInterpreter = errors.New("the sandbox's image has no interpreter for it")
	errSpareDied     = errors.New("the interpreter ended while it waited")
	errNoMemfd       = errors.New("no memory file for the spare's part")
)

//go:embed spare/sitecustomize.py
var sparePython []byte

//go:embed spare/spare.sh
var spareBash []byte

//go:embed spare/spare.js
var spareNode string

// startSpare starts the interpreter of a language that is known to have spares.
func (s *supervisor) startSpare(lang, mark string) (sp *spare, err error) {
	l := languages[lang]
	c := command{dir: s.opts.Workspace, env: s.opts.Environ}
	if !c.find(l) || l.spareBare != "" && c.argv[0] != l.spareBare {
		return nil, errNoInterpreter
	}
	c.argv = append(append(c.argv, l.flags...), l.script)
	sp = &spare{
		language: lang, mark: mark, path: c.path, began: time.Now(),
		status: make(chan exitStatus, 1), dead: make(chan struct{}), taken: make(chan struct{}),
	}
	if sp.program, err = os.Stat(c.path); err != nil {
		return nil, err
	}
	if sp.dir, err = os.Stat(c.dir); err != nil {
		return nil, err
	}
	w, err := l.spare(c.env, mark)
	if err != nil {
		return nil, err
	}
	for _, name := range w.watched {
		sp.watch(name)
	}
	script := &c.argv[len(c.argv)-1]
	if w.dir != "" {
		// What it would make of the script's name in the workspace.
		if *script, err = filepath.EvalSymlinks(c.dir); err != nil {
			return nil, err
		}
		*script = filepath.Join(*script, l.script)
		c.dir = w.dir
	}
	files, err := sp.descriptors(w.archive)
	defer func() {
		for _, fd := range files {
			if fd != unused {
				_ = unix.Close(int(fd))
			}
		}
	}()
	var ended <-chan exitStatus
	if err == nil {
		sp.pid, ended, err = s.reaper.start(c.path, c.argv, &syscall.ProcAttr{
			Dir: c.dir, Env: w.env, Files: files, Sys: &syscall.SysProcAttr{Setsid: true},
		})
	}
	if err != nil {
		sp.closeOurs()
		return nil, fmt.Errorf("starting a spare: %w", err)
	}
	if s.renice {
		sp.reniced = unix.Setpriority(unix.PRIO_PGRP, sp.pid, lowestPriority) == nil
	}
	go func() {
		sp.status <- <-ended
		close(sp.dead)
	}()
	return sp, nil
}

// descriptors makes what the interpreter inherits, and our ends of it. archive is
// in the answer whatever happens.
func (sp *spare) descriptors(archive int) (files []uintptr, err error) {
	files = make([]uintptr, spareFiles)
	for i := range files {
		files[i] = unused
	}
	if archive >= 0 {
		files[spareArchive] = uintptr(archive)
	}
	std, ours, err := stdio(false)
	copy(files, std)
	sp.ours = ours
	if err != nil {
		return files, err
	}
	if languages[sp.language].spareStdin {
		in, w, err := pipe(wire.Stdin)
		if err != nil {
			return files, err
		}
		files[spareStdin], sp.ours[0] = uintptr(in), w
	}
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return files, fmt.Errorf("making a socket pair: %w", err)
	}
	files[spareControl] = uintptr(pair[1])
	if err := unix.SetNonblock(pair[0], true); err != nil {
		_ = unix.Close(pair[0])
		return files, fmt.Errorf("preparing a socket: %w", err)
	}
	sp.control = os.NewFile(uintptr(pair[0]), "spare")
	return files, nil
}

func (sp *spare) closeOurs() {
	for _, f := range append(sp.ours[:], sp.control) {
		if f != nil {
			_ = f.Close()
		}
	}
}

// discard ends a spare that nobody will use.
func (s *supervisor) discard(sp *spare) {
	s.reaper.kill(sp.pid, true, unix.SIGKILL)
	sp.closeOurs()
}

// pythonSpare makes Python import our sitecustomize, which waits. It comes from a
// zip archive in memory, because a file on a disk would be seen by programs.
func pythonSpare(base []string, mark string) (waiting, error) {
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	// Not compressed: to unpack it would import more than a start does.
	f, err := z.CreateHeader(&zip.FileHeader{Name: "sitecustomize.py", Method: zip.Store})
	if err == nil {
		_, err = f.Write(sparePython)
	}
	if err = errors.Join(err, z.Close()); err != nil {
		return waiting{}, err
	}
	archive, err := memoryFile(b.Bytes())
	if err != nil {
		return waiting{}, err
	}
	path := spareFile
	if old := lookup(base, "PYTHONPATH"); old != "" {
		path += ":" + old
	}
	return waiting{env: append(withVar(base, "PYTHONPATH", path), execVar+"="+mark), archive: archive}, nil
}

// memoryFile is a file that no file system shows.
func memoryFile(content []byte) (int, error) {
	fd, err := unix.MemfdCreate("spare", unix.MFD_CLOEXEC)
	if err != nil {
		return -1, errors.Join(errNoMemfd, err)
	}
	for len(content) > 0 {
		n, err := unix.Write(fd, content)
		if err != nil {
			_ = unix.Close(fd)
			return -1, errors.Join(errNoMemfd, err)
		}
		content = content[n:]
	}
	return fd, nil
}

// bashSpare makes bash source a file in memory, which waits.
func bashSpare(base []string, mark string) (waiting, error) {
	if hasVar(base, "BASH_ENV") {
		return waiting{}, errOwnStart
	}
	archive, err := memoryFile(spareBash)
	return waiting{env: append(withVar(base, "BASH_ENV", spareFile), execVar+"="+mark), archive: archive}, err
}

var errOwnStart = errors.New("the environment has a start file of its own, BASH_ENV")

// nodeSpare makes Node require its own environment, which is a script: all but the
// first entry is a comment. It stays readable for as long as the process lives, as
// worker threads want it, and no file system has it.
//
// While Node requires it, it reads and keeps the package.json of its directory and
// of all above: so it is not started in the workspace, where programs write theirs.
func nodeSpare(base []string, mark string) (waiting, error) {
	options := "--require=/proc/self/environ"
	if old := lookup(base, "NODE_OPTIONS"); old != "" {
		options += " " + old
	}
	env := []string{"SANDBOX_SPARE=0;" + spareNode + "/*"}
	env = append(env, withVar(base, "NODE_OPTIONS", options)...)
	for _, v := range env[1:] {
		if strings.Contains(v, "*/") {
			name, _, _ := strings.Cut(v, "=")
			return waiting{}, fmt.Errorf("%w: the value of %s", errEndsComment, name)
		}
	}
	return waiting{
		env: append(env, execVar+"="+mark, "SANDBOX_SPARE_END=*///"), archive: -1,
		dir: "/proc/self", watched: []string{"/package.json"},
	}, nil
}

var errEndsComment = errors.New("the environment holds the end of a comment, */")

// withVar is env with one variable set, in its place if it is there.
func withVar(env []string, name, value string) []string {
	out := make([]string, 0, len(env)+1)
	found := false
	for _, v := range env {
		if strings.HasPrefix(v, name+"=") {
			v, found = name+"="+value, true
		}
		out = append(out, v)
	}
	if !found {
		out = append(out, name+"="+value)
	}
	return out
}

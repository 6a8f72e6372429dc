package runner

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// What goes over a spare's socket: a length of four bytes, big endian, then fields
// with a NUL between them. To the spare the first byte says what it is. Bash, which
// has no NUL in its strings, gets a record of bashRecord instead.
const (
	talkPreload = 'P' // a module to import; the answer is empty or the problem
	talkRun     = 'R' // the hand-over; there is no answer
)

const (
	// maxHandOver bounds a hand-over, in bytes: the socket takes it without waiting.
	maxHandOver = 64 << 10
	// handOverTimeout bounds it in time: a spare that was stopped reads nothing.
	handOverTimeout = time.Second
	// maxAnswer bounds what a spare says at once, in bytes.
	maxAnswer = 1 << 20
	// maxProblem bounds what is repeated of a module's complaint, in bytes.
	maxProblem = 300
	// bashRecord is what a spare bash gets: the exec's ID, filled up with spaces, and
	// whether there is input. spare.sh knows its length.
	bashRecord = "%-64s%s"
)

// preloadError says why a module is not imported ahead.
type preloadError struct{ module, problem string }

func (e *preloadError) Error() string { return fmt.Sprintf("preload %s: %s", e.module, e.problem) }

func (sp *spare) send(kind byte, fields ...string) error {
	body := strings.Join(fields, "\x00")
	if languages[sp.language].spareBare != "" {
		id, input := fields[0], strings.Join(fields[1:], "")
		return sp.write(fmt.Appendf(nil, bashRecord, id, input))
	}
	b := binary.BigEndian.AppendUint32(nil, uint32(len(body)+1))
	return sp.write(append(append(b, kind), body...))
}

func (sp *spare) write(b []byte) error {
	if err := sp.control.SetWriteDeadline(time.Now().Add(handOverTimeout)); err != nil {
		return err
	}
	_, err := sp.control.Write(b)
	return err
}

func (sp *spare) receive(timeout time.Duration) ([]byte, error) {
	if err := sp.control.SetReadDeadline(time.Now().Add(timeout)); err != nil {
		return nil, err
	}
	var size [4]byte
	if _, err := io.ReadFull(sp.control, size[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(size[:])
	if n > maxAnswer {
		return nil, fmt.Errorf("the interpreter answers with %d bytes: %w", n, io.ErrShortBuffer)
	}
	b := make([]byte, n)
	_, err := io.ReadFull(sp.control, b)
	return b, err
}

// awaitHello waits until the interpreter has started. It then tells which files
// its start depended on.
func (sp *spare) awaitHello() error {
	b, err := sp.receive(spareStartTimeout)
	if err != nil {
		return fmt.Errorf("the interpreter did not start: %w", err)
	}
	for name := range bytes.SplitSeq(b, []byte{0}) {
		if len(name) == 0 {
			continue
		}
		if st, err := os.Stat(string(name)); err == nil && os.SameFile(st, sp.dir) {
			return errWorkspaceOnPath
		}
		sp.watch(string(name))
	}
	sp.noise = sp.written()
	return nil
}

// preload makes the interpreter import a module. The error is a *preloadError.
func (sp *spare) preload(module string) error {
	bad := func(format string, a ...any) error {
		problem := fmt.Sprintf(format, a...)
		return &preloadError{module: module, problem: strings.ToValidUTF8(problem[:min(len(problem), maxProblem)], "")}
	}
	if languages[sp.language].spareBare != "" {
		return bad("the language has no modules")
	}
	if module == "" || strings.Contains(module, "\x00") {
		return bad("this is no name")
	}
	err := sp.send(talkPreload, module)
	var answer []byte
	if err == nil {
		answer, err = sp.receive(preloadTimeout)
	}
	switch {
	case errors.Is(err, os.ErrDeadlineExceeded):
		return bad("its import took longer than %v", preloadTimeout)
	case err != nil:
		return bad("its import ended the interpreter")
	case len(answer) > 0:
		return bad("%s", answer)
	case sp.written() != sp.noise:
		return bad("its import prints")
	}
	return nil
}

// written is how much the interpreter has written so far, while nobody reads it.
func (sp *spare) written() int {
	sum := 0
	for _, f := range sp.ours[1:] {
		raw, err := f.SyscallConn()
		if err != nil {
			continue
		}
		_ = raw.Control(func(fd uintptr) {
			if n, err := unix.IoctlGetInt(int(fd), unix.TIOCINQ); err == nil {
				sum += n
			}
		})
	}
	return sum
}

// handOver gives c to a spare that fits: from here on it is c's first process.
func (s *supervisor) handOver(sp *spare, c *command, stdin bool) error {
	if sp.reniced {
		if err := unix.Setpriority(unix.PRIO_PGRP, sp.pid, s.priority); err != nil {
			return fmt.Errorf("raising its priority: %w", err)
		}
	}
	// One thread that waits in a read uses nothing.
	if sp.before.threads != 1 {
		if err := sp.look(); err != nil {
			return err
		}
	}
	if err := sp.send(talkRun, handOverFields(c, s.opts.Environ, stdin)...); err != nil {
		return fmt.Errorf("handing over: %w", err)
	}
	sp.over = []*os.File{sp.control}
	if !stdin {
		sp.over = append(sp.over, sp.ours[0])
		sp.ours[0] = nil
	}
	return nil
}

// look notes what the spare is and has used.
func (sp *spare) look() error {
	var ok bool
	if sp.before, ok = statOf(sp.pid); !ok || sp.before.dead {
		return errSpareDied
	}
	return nil
}

// handOverFields are: whether there is input, the directory; then the arguments, the variables
// to remove and those to set, each with its number in front.
func handOverFields(c *command, base []string, stdin bool) []string {
	flag := "0"
	if stdin {
		flag = "1"
	}
	if languages[c.language].spareBare != "" { // nothing but the mark can differ
		return []string{lookup(c.env, execVar), flag}
	}
	list := func(to, of []string) []string {
		return append(append(to, strconv.Itoa(len(of))), of...)
	}
	fields := list([]string{flag, c.dir}, c.args)
	// What differs from the environment that the spare started with, in the order
	// that a start would see: the request's variables and the mark come last.
	remove, set := []string{execVar}, []string{}
	for name := range c.extra {
		remove = append(remove, name)
	}
	for _, name := range ownVars {
		if hasVar(base, name) {
			set = append(set, name+"="+lookup(base, name))
		} else {
			remove = append(remove, name)
		}
	}
	set = append(set, c.env[len(c.env)-len(c.extra)-1:]...)
	return list(list(fields, remove), set)
}

// ownVars are the variables that make an interpreter a spare. What they were
// before is put back at the hand-over.
var ownVars = []string{"PYTHONPATH", "NODE_OPTIONS"}

// usageSince is the use of a process without what it had used at the hand-over.
func (sp *spare) usageSince(u wire.Usage) wire.Usage {
	u.UserMS = max(0, u.UserMS-sp.before.user.Milliseconds())
	u.SystemMS = max(0, u.SystemMS-sp.before.system.Milliseconds())
	return u
}

package broker

import (
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// Bounds on a request.
const (
	maxArgs = 1024        // arguments of a program
	maxArg  = 128<<10 - 1 // bytes of one argument or variable: Linux's MAX_ARG_STRLEN, execve(2)
	maxEnv  = 256         // environment variables
)

var envPattern = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// checkProgram validates what a caller wants to run, before anything is taken
// for it, and returns its timeout.
func (c PoolConfig) checkProgram(p *wire.Program, code []byte) (time.Duration, error) {
	if p == nil {
		return 0, wire.Invalid("program", 0, "the request names no program")
	}
	if p.File != nil {
		return c.checkFile(p, code)
	}
	switch {
	case p.Language == "" && len(p.Argv) == 0:
		return 0, wire.Invalid("program.language", 0, "a program needs a language with code, or an argv")
	case p.Language == "" && len(code) > 0:
		return 0, wire.Invalid("program.language", 0, "code came without a language; the pool %q has %s", c.Name, strings.Join(c.Languages, ", "))
	case p.Language != "" && !slices.Contains(c.Languages, p.Language):
		return 0, wire.Invalid("program.language", 0, "the pool %q has no language %q; it has %s", c.Name, p.Language, strings.Join(c.Languages, ", "))
	case p.Language != "" && len(code) == 0:
		return 0, wire.Invalid("code", 1, "the code is empty")
	case len(code) > c.CodeLimit:
		return 0, wire.Invalid("code", int64(c.CodeLimit), "code of %d bytes exceeds the pool's limit of %d", len(code), c.CodeLimit)
	case len(p.Argv) > maxArgs:
		return 0, wire.Invalid("program.argv", maxArgs, "%d arguments exceed the limit of %d", len(p.Argv), maxArgs)
	case len(p.Env) > maxEnv:
		return 0, wire.Invalid("program.env", maxEnv, "%d variables exceed the limit of %d", len(p.Env), maxEnv)
	case strings.ContainsRune(p.Dir, 0):
		return 0, wire.Invalid("program.dir", 0, "a directory's name holds a zero byte")
	case p.OutputLimit < 0:
		return 0, wire.Invalid("program.output_limit", 0, "%d bytes of output are less than none; 0 takes the pool's limit", p.OutputLimit)
	case c.OutputLimit > 0 && p.OutputLimit > c.OutputLimit:
		return 0, wire.Invalid("program.output_limit", c.OutputLimit, "%d bytes of output exceed the pool's limit of %d", p.OutputLimit, c.OutputLimit)
	case p.Retention != "" && p.Retention != wire.RetainAll && p.Retention != wire.RetainNewest:
		return 0, wire.Invalid("program.retention", 0, "the retentions are %s and %s", wire.RetainAll, wire.RetainNewest)
	}
	for _, a := range p.Argv {
		if strings.ContainsRune(a, 0) {
			return 0, wire.Invalid("program.argv", 0, "an argument holds a zero byte")
		}
		if len(a) > maxArg {
			return 0, wire.Invalid("program.argv", maxArg, "an argument of %d bytes exceeds the limit of %d; use stdin or a file", len(a), maxArg)
		}
	}
	for k, v := range p.Env {
		if !envPattern.MatchString(k) || strings.ContainsRune(v, 0) {
			return 0, wire.Invalid("program.env", 0, "%.64q cannot be an environment variable: a name has letters, digits and _, a value no zero byte", k)
		}
		if len(k)+1+len(v) > maxArg {
			return 0, wire.Invalid("program.env", maxArg, "the variable %.64q takes %d bytes, more than the limit of %d; use stdin or a file", k, len(k)+1+len(v), maxArg)
		}
	}
	return c.checkTimeout(p.TimeoutMS)
}

// checkFile validates an operation on a file. Without a timeout it may take the
// pool's longest: who moves a file does not know how long that takes. The path is
// the caller's data and is not repeated, because refusals are logged.
func (c PoolConfig) checkFile(p *wire.Program, code []byte) (time.Duration, error) {
	f := p.File
	switch {
	case p.Language != "" || len(p.Argv) > 0 || len(p.Env) > 0 || p.Dir != "" || p.Retention != "" || p.OutputLimit != 0 || len(code) > 0:
		return 0, wire.Invalid("program.file", 0, "an operation on a file has no language, code, argv, env, dir, retention or output_limit")
	case f.Op != wire.FileRead && f.Op != wire.FileWrite:
		return 0, wire.Invalid("program.file.op", 0, "the operations on a file are %s and %s", wire.FileRead, wire.FileWrite)
	case f.Path == "" || len(f.Path) > wire.MaxFilePath:
		return 0, wire.Invalid(wire.FieldFilePath, wire.MaxFilePath, "a path of %d bytes lies outside 1 to %d", len(f.Path), wire.MaxFilePath)
	case strings.ContainsRune(f.Path, 0):
		return 0, wire.Invalid(wire.FieldFilePath, 0, "the path holds a zero byte")
	case f.Mode > wire.MaxFileMode:
		return 0, wire.Invalid("program.file.mode", wire.MaxFileMode, "the mode %#o has more than the permission bits, which go up to %#o", f.Mode, wire.MaxFileMode)
	case f.Op == wire.FileRead && f.Mode != 0:
		return 0, wire.Invalid("program.file.mode", 0, "a mode is for a write; a read has none")
	case f.Op == wire.FileRead && p.Stdin:
		return 0, wire.Invalid("program.stdin", 0, "a read takes no input")
	case f.Op == wire.FileWrite && !p.Stdin:
		return 0, wire.Invalid("program.stdin", 0, "a write needs input: the file's content")
	case p.TimeoutMS == 0:
		return c.MaxTimeout, nil
	}
	return c.checkTimeout(p.TimeoutMS)
}

func (c PoolConfig) checkTimeout(ms int64) (time.Duration, error) {
	if ms == 0 {
		return c.DefaultTimeout, nil
	}
	// Compared as milliseconds: a huge number must not overflow into a small one.
	if ms < MinTimeout.Milliseconds() || ms > c.MaxTimeout.Milliseconds() {
		return 0, wire.Invalid("program.timeout_ms", c.MaxTimeout.Milliseconds(), "a timeout of %d ms lies outside the pool's %s to %s", ms, MinTimeout, c.MaxTimeout)
	}
	return time.Duration(ms) * time.Millisecond, nil
}

func (c PoolConfig) checkTTL(ms int64) (time.Duration, error) {
	if ms == 0 {
		return c.DefaultTTL, nil
	}
	if ms < MinTimeout.Milliseconds() || ms > c.MaxTTL.Milliseconds() {
		return 0, wire.Invalid("ttl_ms", c.MaxTTL.Milliseconds(), "a lease of %d ms lies outside the pool's %s to %s", ms, MinTimeout, c.MaxTTL)
	}
	return time.Duration(ms) * time.Millisecond, nil
}

// checkWindows validates the first credit of a request's output.
func checkWindows(r *wire.Request) (stdout, stderr wire.Credit, err error) {
	one := func(field string, c *wire.Credit) wire.Credit {
		if c == nil {
			return wire.Credit{Limit: wire.DefaultWindow}
		}
		switch {
		case c.Limit < c.Acked:
			err = wire.Invalid(field+".limit", 0, "the limit %d lies before the acknowledged offset %d", c.Limit, c.Acked)
		case c.Limit-c.Acked > wire.MaxWindow:
			err = wire.Invalid(field+".limit", wire.MaxWindow, "a window of %d bytes exceeds the limit of %d", c.Limit-c.Acked, wire.MaxWindow)
		case c.Acked > 0 && r.Op != wire.OpAttach && (r.Op != wire.OpExec || r.ID == ""):
			err = wire.Invalid(field+".acked", 0, "a new exec's output starts at 0, not at %d", c.Acked)
		}
		return *c
	}
	stdout, stderr = one("stdout", r.Stdout), one("stderr", r.Stderr)
	return stdout, stderr, err
}

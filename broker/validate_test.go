package broker

import (
	"math"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

func TestProgramsAreRefusedByFieldAndLimit(t *testing.T) {
	t.Parallel()
	pool := PoolConfig{Name: "p", CodeLimit: 10, OutputLimit: 1000, Languages: []string{"python"}, MaxTimeout: 20 * time.Second}.WithDefaults()
	python := func(change func(*wire.Program)) *wire.Program {
		p := &wire.Program{Language: "python"}
		if change != nil {
			change(p)
		}
		return p
	}
	many := map[string]string{}
	for i := range maxEnv + 1 {
		many["V"+strings.Repeat("x", i)] = ""
	}
	file := func(change func(*wire.Program)) *wire.Program {
		p := &wire.Program{Stdin: true, File: &wire.FileOp{Op: wire.FileWrite, Path: "a"}}
		change(p)
		return p
	}
	for name, c := range map[string]struct {
		program *wire.Program
		code    string
		field   string
		limit   int64
	}{
		"nothing":                   {nil, "x", "program", 0},
		"neither language nor argv": {&wire.Program{}, "", "program.language", 0},
		"code without a language":   {&wire.Program{Argv: []string{"true"}}, "x", "program.language", 0},
		"an unknown language":       {&wire.Program{Language: "cobol"}, "x", "program.language", 0},
		"empty code":                {python(nil), "", "code", 1},
		"code over the limit":       {python(nil), "12345678901", "code", 10},
		"too many arguments":        {python(func(p *wire.Program) { p.Argv = make([]string, maxArgs+1) }), "x", "program.argv", maxArgs},
		"a zero byte in an argument": {
			python(func(p *wire.Program) { p.Argv = []string{"a\x00b"} }), "x", "program.argv", 0,
		},
		"too many variables":          {python(func(p *wire.Program) { p.Env = many }), "x", "program.env", maxEnv},
		"a variable without a name":   {python(func(p *wire.Program) { p.Env = map[string]string{"": "v"} }), "x", "program.env", 0},
		"a variable's name with =":    {python(func(p *wire.Program) { p.Env = map[string]string{"A=B": "v"} }), "x", "program.env", 0},
		"a variable with a zero byte": {python(func(p *wire.Program) { p.Env = map[string]string{"A": "\x00"} }), "x", "program.env", 0},
		"a directory with a zero byte": {
			python(func(p *wire.Program) { p.Dir = "a\x00" }), "x", "program.dir", 0,
		},
		"a timeout under a second": {python(func(p *wire.Program) { p.TimeoutMS = 999 }), "x", "program.timeout_ms", 20000},
		"a timeout over the pool's": {
			python(func(p *wire.Program) { p.TimeoutMS = 20001 }), "x", "program.timeout_ms", 20000,
		},
		"a negative timeout":   {python(func(p *wire.Program) { p.TimeoutMS = -1 }), "x", "program.timeout_ms", 20000},
		"output below nothing": {python(func(p *wire.Program) { p.OutputLimit = -1 }), "x", "program.output_limit", 0},
		"output over the pool's": {
			python(func(p *wire.Program) { p.OutputLimit = 1001 }), "x", "program.output_limit", 1000,
		},
		"a file and a limit of output": {file(func(p *wire.Program) { p.OutputLimit = 1 }), "", "program.file", 0},
		// In nanoseconds this number would wrap around into the allowed range.
		"a timeout that overflows":  {python(func(p *wire.Program) { p.TimeoutMS = math.MaxInt64/1_000_000 + 2 }), "x", "program.timeout_ms", 20000},
		"a file and code":           {file(func(*wire.Program) {}), "x", "program.file", 0},
		"a file and a language":     {file(func(p *wire.Program) { p.Language = "python" }), "", "program.file", 0},
		"a file and an argv":        {file(func(p *wire.Program) { p.Argv = []string{"true"} }), "", "program.file", 0},
		"a file and a variable":     {file(func(p *wire.Program) { p.Env = map[string]string{"A": ""} }), "", "program.file", 0},
		"a file and a directory":    {file(func(p *wire.Program) { p.Dir = "d" }), "", "program.file", 0},
		"a file without operation":  {file(func(p *wire.Program) { p.File.Op = "" }), "", "program.file.op", 0},
		"an unknown file operation": {file(func(p *wire.Program) { p.File.Op = "append" }), "", "program.file.op", 0},
		"a file without a path":     {file(func(p *wire.Program) { p.File.Path = "" }), "", "program.file.path", 4096},
		"a file's path too long":    {file(func(p *wire.Program) { p.File.Path = strings.Repeat("x", 4097) }), "", "program.file.path", 4096},
		"a file's path with a zero": {file(func(p *wire.Program) { p.File.Path = "a\x00" }), "", "program.file.path", 0},
		"a file's mode too wide":    {file(func(p *wire.Program) { p.File.Mode = 0o1000 }), "", "program.file.mode", 0o777},
		"a write without input":     {file(func(p *wire.Program) { p.Stdin = false }), "", "program.stdin", 0},
		"a read with input":         {file(func(p *wire.Program) { p.File.Op = wire.FileRead }), "", "program.stdin", 0},
		"a read with a mode": {
			file(func(p *wire.Program) { p.File.Op, p.File.Mode, p.Stdin = wire.FileRead, 0o600, false }), "", "program.file.mode", 0,
		},
		"a file's timeout over the pool's": {file(func(p *wire.Program) { p.TimeoutMS = 20001 }), "", "program.timeout_ms", 20000},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := pool.checkProgram(c.program, []byte(c.code))
			require.ErrorIs(t, err, wire.ErrInvalid)
			require.Equal(t, c.field, wire.AsError(err).Field)
			require.Equal(t, c.limit, wire.AsError(err).Limit)
		})
	}

	timeout, err := pool.checkProgram(python(nil), []byte("1234567890"))
	require.NoError(t, err, "code of exactly the limit")
	require.Equal(t, 20*time.Second, timeout, "the default is narrowed by the pool's maximum")
	timeout, err = pool.checkProgram(python(func(p *wire.Program) { p.TimeoutMS = 1000 }), []byte("x"))
	require.NoError(t, err)
	require.Equal(t, time.Second, timeout)

	pool.DefaultTimeout = 10 * time.Second
	timeout, err = pool.checkProgram(file(func(p *wire.Program) { p.File.Path = strings.Repeat("x", 4096); p.File.Mode = 0o777 }), nil)
	require.NoError(t, err)
	require.Equal(t, 20*time.Second, timeout, "a file may take the pool's longest")
	timeout, err = pool.checkProgram(file(func(p *wire.Program) { p.TimeoutMS = 2000 }), nil)
	require.NoError(t, err)
	require.Equal(t, 2*time.Second, timeout)
}

func TestWindowsAreChecked(t *testing.T) {
	t.Parallel()
	credit := func(acked, limit uint64) *wire.Credit { return &wire.Credit{Acked: acked, Limit: limit} }
	for name, c := range map[string]struct {
		req   wire.Request
		field string // empty: accepted
	}{
		"none given":                {wire.Request{Op: wire.OpRun}, ""},
		"the largest":               {wire.Request{Op: wire.OpRun, Stdout: credit(0, wire.MaxWindow)}, ""},
		"an attach with an offset":  {wire.Request{Op: wire.OpAttach, Stderr: credit(5, 10)}, ""},
		"beyond the largest":        {wire.Request{Op: wire.OpRun, Stdout: credit(0, wire.MaxWindow+1)}, "stdout.limit"},
		"a limit before the offset": {wire.Request{Op: wire.OpAttach, Stderr: credit(10, 5)}, "stderr.limit"},
		"a new exec with an offset": {wire.Request{Op: wire.OpExec, Stdout: credit(1, 10)}, "stdout.acked"},
		"an offset near the number's end": {
			wire.Request{Op: wire.OpAttach, Stdout: credit(1, math.MaxUint64)}, "stdout.limit",
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, _, err := checkWindows(&c.req)
			if c.field == "" {
				require.NoError(t, err)
				return
			}
			require.ErrorIs(t, err, wire.ErrInvalid)
			require.Equal(t, c.field, wire.AsError(err).Field)
		})
	}
}

func TestPoolsThatCannotWork(t *testing.T) {
	t.Parallel()
	for key, c := range map[string]PoolConfig{
		"name":            {},
		"maxSandboxes":    {Name: "p", MaxSandboxes: -1},
		"stock":           {Name: "p", MaxSandboxes: 2, Stock: 3},
		"cold":            {Name: "p", Cold: "maybe"},
		"queue.length":    {Name: "p", QueueLength: -1},
		"queue.timeout":   {Name: "p", QueueTimeout: -1},
		"readyTimeout":    {Name: "p", ReadyTimeout: -1},
		"timeout.max":     {Name: "p", MaxTimeout: MaxTimeout + 1},
		"timeout.default": {Name: "p", MaxTimeout: 5 * time.Second, DefaultTimeout: 6 * time.Second},
		"codeLimit":       {Name: "p", CodeLimit: wire.MaxCode + 1},
		"lease.default":   {Name: "p", MaxTTL: time.Minute, DefaultTTL: time.Hour},
		"detachGrace":     {Name: "p", DetachGrace: -1},
		"linger":          {Name: "p", Linger: -1},
	} {
		t.Run(key, func(t *testing.T) {
			t.Parallel()
			err := c.WithDefaults().Check()
			require.ErrorIs(t, err, wire.ErrInvalid)
			require.Equal(t, key, wire.AsError(err).Field)
		})
	}
	require.NoError(t, PoolConfig{Name: "p"}.WithDefaults().Check())
}

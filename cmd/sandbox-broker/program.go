package main

import (
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"time"

	"github.com/spf13/pflag"
)

// programFlags say how a program runs and what its streams are.
type programFlags struct {
	streams
	language string
	inline   string // -e
	isInline bool   // -e was given
	timeout  time.Duration
	env      []string
	limit    int64
	raw      bool
	handle   bool
}

// register adds the flags. language says what the default language is, and instead
// what the code of -e stands in for.
func (p *programFlags) register(flags *pflag.FlagSet, language, instead string) {
	flags.StringVarP(&p.language, "language", "l", "", "`language` of the code (default "+language+")")
	flags.StringVarP(&p.inline, "eval", "e", "", "run `CODE` instead of "+instead)
	flags.DurationVar(&p.timeout, "timeout", 0, "end the program after this `time`, such as 30s (default the pool's)")
	flags.Int64Var(&p.limit, "output-limit", 0, "end the program when it has written more than these `bytes` (default the pool's)")
	flags.StringArrayVar(&p.env, "env", nil, "set a variable in the sandbox, as `KEY=VALUE`; may be repeated")
	flags.BoolVar(&p.handle, "print-handle", false, "print the program's handle, for attach, to standard error when it starts")
	flags.BoolVar(&p.raw, "raw", false, "pass control sequences on to the terminal")
}

// outputs are where the program's output goes.
func (p *programFlags) outputs() (stdout, stderr io.Writer) {
	if p.raw {
		return p.out, p.err
	}
	return harmless(p.out), harmless(p.err)
}

// started is what is done when the program has its handle.
func (p *programFlags) started(handle string) {
	if p.handle {
		fmt.Fprintln(p.err, "handle:", handle)
	}
}

// programInput is what the program reads: nothing if it would be a terminal,
// where a program that reads by chance would wait for someone to type.
func programInput(in io.Reader) io.Reader {
	f, ok := in.(*os.File)
	if !ok {
		return in
	}
	info, err := f.Stat()
	if err != nil || info.Mode()&fs.ModeCharDevice != 0 {
		return nil
	}
	return f
}

func parseEnv(pairs []string) (map[string]string, error) {
	if len(pairs) == 0 {
		return nil, nil
	}
	env := make(map[string]string, len(pairs))
	for _, pair := range pairs {
		key, value, ok := strings.Cut(pair, "=")
		if !ok || key == "" {
			return nil, fmt.Errorf("--env %q is not KEY=VALUE", pair)
		}
		env[key] = value
	}
	return env, nil
}

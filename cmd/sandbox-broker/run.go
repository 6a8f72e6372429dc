package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient"
	"github.com/sandbox-broker/sandbox-broker/sandboxclient/wire"
)

// defaultLanguage is the language of code whose file name does not tell.
const defaultLanguage = "python"

// languages tells the language by a file's extension.
var languages = map[string]string{".py": "python", ".sh": "shell", ".js": "node", ".mjs": "node"}

// runCommand is `sandbox-broker run`.
type runCommand struct {
	programFlags
	connect connectFlags
	pool    string
}

func newRunCommand(s streams) *cobra.Command {
	r := &runCommand{programFlags: programFlags{streams: s}}
	cmd := &cobra.Command{
		Use:   "run [flags] FILE|- [ARG...]\n  sandbox-broker run [flags] -e CODE [ARG...]",
		Short: "Run code in a sandbox",
		Long: `Run code in a sandbox of its own, which is destroyed afterwards.

The code comes from FILE, from standard input (-), or from -e. What follows FILE
goes to the program, and so does what follows "--". Standard input goes to the
program too, unless the code comes from there or it is a terminal. Output that
goes to a terminal is shown without control sequences, unless --raw is given.

The exit code is the program's own, except for
  124    its time was over
  125    the broker or this command failed; the message says what to do
  128+n  signal n ended it
  130    this command was interrupted; the program was ended
  137    it ran out of memory, or wrote more than allowed`,
		Example: `  sandbox-broker run --pool python-gvisor main.py --verbose input.csv
  echo 'print(1+1)' | sandbox-broker run --pool python-gvisor -
  sandbox-broker run --pool python-gvisor --language node -e 'console.log(1+1)'`,
		Args:                  cobra.ArbitraryArgs,
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			r.isInline = cmd.Flags().Changed("eval")
			return r.run(cmd.Context(), args)
		},
	}
	flags := cmd.Flags()
	flags.SetInterspersed(false) // flags after FILE are the program's
	flags.SortFlags = false
	flags.StringVarP(&r.pool, "pool", "p", "", "`name` of the pool to take the sandbox from")
	r.register(flags, "by FILE's extension, else "+defaultLanguage, "a file")
	r.connect.register(flags)
	return cmd
}

func (r *runCommand) run(ctx context.Context, args []string) error {
	code, err := r.code(ctx, args)
	if err != nil {
		return err
	}
	client, err := r.connect.client()
	if err != nil {
		return err
	}
	defer client.Close()
	_, err = client.Run(ctx, code)
	return programError(ctx, err)
}

// code makes the program of the flags and arguments.
func (r *runCommand) code(ctx context.Context, args []string) (sandboxclient.Code, error) {
	code := sandboxclient.Code{Pool: r.pool, Language: r.language, Timeout: r.timeout, OutputLimit: r.limit, Stdin: programInput(r.in), Started: r.started}
	code.Stdout, code.Stderr = r.outputs()
	var err error
	if code.Env, err = parseEnv(r.env); err != nil {
		return code, err
	}
	file := ""
	if r.isInline {
		code.Source = r.inline
	} else {
		if len(args) == 0 {
			return code, errors.New("there is no code: name a FILE, - for standard input, or give the code with -e")
		}
		file, args = args[0], args[1:]
		if file == "-" {
			code.Stdin = nil
		}
		if code.Source, err = r.readCode(ctx, file); err != nil {
			return code, err
		}
	}
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	}
	code.Args = args
	if code.Language == "" {
		code.Language = languageOf(file)
	}
	return code, nil
}

// readCode reads a file, or standard input for "-". It returns with ctx even
// while someone is still typing.
func (r *runCommand) readCode(ctx context.Context, file string) (string, error) {
	in := r.in
	if file != "-" {
		f, err := os.Open(file)
		if err != nil {
			return "", fmt.Errorf("reading the code: %w", err)
		}
		defer f.Close()
		in = f
	}
	type result struct {
		code []byte
		err  error
	}
	done := make(chan result, 1) // the reader ends with its Read, or with the process
	go func() {
		b, err := io.ReadAll(io.LimitReader(in, wire.MaxCode+1))
		done <- result{b, err}
	}()
	select {
	case <-ctx.Done():
		return "", &exitError{code: exitInterrupted}
	case res := <-done:
		if res.err != nil {
			return "", fmt.Errorf("reading the code: %w", res.err)
		}
		if len(res.code) > wire.MaxCode {
			return "", fmt.Errorf("reading the code: %s is larger than %d bytes", file, wire.MaxCode)
		}
		return string(res.code), nil
	}
}

func languageOf(file string) string {
	if l, ok := languages[strings.ToLower(filepath.Ext(file))]; ok {
		return l
	}
	return defaultLanguage
}

package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient"
)

// execCommand is `sandbox-broker exec`.
type execCommand struct {
	programFlags
	connect connectFlags
}

func newExecCommand(s streams) *cobra.Command {
	e := &execCommand{programFlags: programFlags{streams: s}}
	cmd := &cobra.Command{
		Use:   "exec [flags] LEASE [--] PROGRAM [ARG...]\n  sandbox-broker exec [flags] -e CODE LEASE [ARG...]",
		Short: "Run a program in a sandbox that was acquired",
		Long: `Run a program of the sandbox, or the code of -e, in a lease.

What follows LEASE is the program with its arguments, or the arguments of the code.
It starts in the workspace, with the files that earlier commands left there.
Streams and exit codes are those of run.`,
		Example: `  sandbox-broker exec "$lease" -- ls -l
  sandbox-broker exec --language python -e 'print(open("out.csv").read())' "$lease"`,
		Args:                  cobra.ArbitraryArgs,
		DisableFlagsInUseLine: true,
		RunE: func(cmd *cobra.Command, args []string) error {
			e.isInline = cmd.Flags().Changed("eval")
			return e.run(cmd.Context(), args)
		},
	}
	flags := cmd.Flags()
	flags.SetInterspersed(false) // flags after LEASE are the program's
	flags.SortFlags = false
	e.register(flags, defaultLanguage, "a program")
	e.connect.register(flags)
	return cmd
}

func (e *execCommand) run(ctx context.Context, args []string) error {
	env, err := parseEnv(e.env)
	if err != nil {
		return err
	}
	if len(args) == 0 {
		return errors.New("there is no lease: name the LEASE that acquire has printed")
	}
	handle, args := args[0], args[1:]
	if len(args) > 0 && args[0] == "--" {
		args = args[1:]
	}
	switch {
	case !e.isInline && len(args) == 0:
		return errors.New("there is no program: name one after LEASE, or give code with -e")
	case !e.isInline && e.language != "":
		return errors.New("--language is for the code of -e")
	}
	client, err := e.connect.client()
	if err != nil {
		return err
	}
	defer client.Close()
	cmd := e.command(client.Lease(handle), args)
	cmd.Env, cmd.Timeout, cmd.OutputLimit, cmd.Stdin = env, e.timeout, e.limit, programInput(e.in)
	cmd.Stdout, cmd.Stderr = e.outputs()
	if err := cmd.Start(ctx); err != nil {
		return programError(ctx, err)
	}
	e.started(cmd.Handle())
	return programError(ctx, cmd.Wait())
}

func (e *execCommand) command(lease *sandboxclient.Lease, args []string) *sandboxclient.Cmd {
	switch {
	case !e.isInline:
		return lease.Command(args[0], args[1:]...)
	case e.language == "":
		return lease.Script(defaultLanguage, e.inline, args...)
	}
	return lease.Script(e.language, e.inline, args...)
}

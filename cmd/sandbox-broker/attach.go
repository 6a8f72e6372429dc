package main

import (
	"context"
	"errors"

	"github.com/spf13/cobra"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient"
)

// attachCommand is `sandbox-broker attach`.
type attachCommand struct {
	streams
	connect connectFlags
	raw     bool
	opts    sandboxclient.AttachOptions
}

func newAttachCommand(s streams) *cobra.Command {
	a := &attachCommand{streams: s}
	cmd := &cobra.Command{
		Use:   "attach [flags] HANDLE",
		Short: "Take up the output of a program that runs",
		Long: `Take up the output of a program by the handle that run or exec printed with
--print-handle.

Its output comes from the given offsets on, by default from its beginning. What its
reader before has acknowledged is not kept: an attach before that is refused, and the
error says from which offset there is output. Whoever had the output before is told that another reader has it now. To
interrupt this command ends the program, as it does with run. Exit codes are those
of run.`,
		Example: `  sandbox-broker exec --print-handle "$lease" -- ./train 2>handle &
  sandbox-broker attach "$(cut -d' ' -f2 handle)"`,
		Args:                  cobra.ArbitraryArgs,
		DisableFlagsInUseLine: true,
		RunE:                  func(cmd *cobra.Command, args []string) error { return a.run(cmd.Context(), args) },
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.Uint64Var(&a.opts.StdoutOffset, "stdout-offset", 0, "how many `bytes` of its standard output are here already")
	flags.Uint64Var(&a.opts.StderrOffset, "stderr-offset", 0, "how many `bytes` of its standard error are here already")
	flags.BoolVar(&a.raw, "raw", false, "pass control sequences on to the terminal")
	a.connect.register(flags)
	return cmd
}

func (a *attachCommand) run(ctx context.Context, args []string) error {
	if len(args) != 1 {
		return errors.New("name one HANDLE, which run and exec print with --print-handle")
	}
	client, err := a.connect.client()
	if err != nil {
		return err
	}
	defer client.Close()
	a.opts.Stdout, a.opts.Stderr = a.out, a.err
	if !a.raw {
		a.opts.Stdout, a.opts.Stderr = harmless(a.out), harmless(a.err)
	}
	cmd, err := client.Attach(ctx, args[0], a.opts)
	if err == nil {
		err = cmd.Wait()
	}
	return programError(ctx, err)
}

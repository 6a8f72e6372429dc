package main

import (
	"context"
	"io"

	"github.com/spf13/cobra"

	"github.com/sandbox-broker/sandbox-broker/internal/version"
)

// streams are what a command reads and writes.
type streams struct {
	in       io.Reader
	out, err io.Writer
}

// run is the whole program: it returns the exit code. Errors are printed here,
// once, and nowhere else.
func run(ctx context.Context, args []string, s streams) int {
	root := newRootCommand(s)
	root.SetArgs(args)
	return report(root.ExecuteContext(ctx), harmless(s.err))
}

func newRootCommand(s streams) *cobra.Command {
	root := &cobra.Command{
		Use:   "sandbox-broker",
		Short: "Run code in warm, isolated sandboxes",
		Long: `Run code in warm, isolated sandboxes.

A broker hands out sandboxes that are ready before they are needed, runs code in
them, streams its output and destroys them.`,
		Version:       version.String(),
		SilenceErrors: true, // run prints them
		SilenceUsage:  true,
	}
	root.CompletionOptions.HiddenDefaultCmd = true
	root.SetIn(s.in)
	root.SetOut(s.out)
	root.SetErr(s.err)
	root.AddCommand(newServeCommand(s))
	root.AddCommand(newRunCommand(s))
	root.AddCommand(newAcquireCommand(s))
	root.AddCommand(newExecCommand(s))
	root.AddCommand(newAttachCommand(s))
	root.AddCommand(newCpCommand(s))
	root.AddCommand(newReleaseCommand())
	root.AddCommand(newBenchCommand(s))
	root.AddCommand(newVersionCommand(s))
	return root
}

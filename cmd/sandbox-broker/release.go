package main

import (
	"context"

	"github.com/spf13/cobra"
)

// releaseCommand is `sandbox-broker release`.
type releaseCommand struct {
	connect connectFlags
}

func newReleaseCommand() *cobra.Command {
	r := new(releaseCommand)
	cmd := &cobra.Command{
		Use:   "release [flags] LEASE",
		Short: "Give a sandbox back that was acquired",
		Long: `Give a lease back. Its sandbox is destroyed, with its files and what runs in it.

Releasing a lease that is over is no error.`,
		Args:                  cobra.ExactArgs(1),
		DisableFlagsInUseLine: true,
		RunE:                  func(cmd *cobra.Command, args []string) error { return r.run(cmd.Context(), args[0]) },
	}
	cmd.Flags().SortFlags = false
	r.connect.register(cmd.Flags())
	return cmd
}

func (r *releaseCommand) run(ctx context.Context, handle string) error {
	client, err := r.connect.client()
	if err != nil {
		return err
	}
	defer client.Close()
	return callError(ctx, client.Lease(handle).Release(ctx), "releasing again does no harm")
}

package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandbox-broker/sandbox-broker/sandboxclient"
)

// acquireCommand is `sandbox-broker acquire`.
type acquireCommand struct {
	streams
	connect connectFlags
	pool    string
	ttl     time.Duration
}

func newAcquireCommand(s streams) *cobra.Command {
	a := &acquireCommand{streams: s}
	cmd := &cobra.Command{
		Use:   "acquire [flags]",
		Short: "Take a sandbox for several commands",
		Long: `Take a lease on a sandbox, and print its handle.

The sandbox is there, with its files, for exec and cp until it is released, or
its time is over.`,
		Example: `  lease=$(sandbox-broker acquire --pool python-gvisor --ttl 10m)
  sandbox-broker cp input.csv "$lease:data/"
  sandbox-broker exec "$lease" -- wc -l data/input.csv
  sandbox-broker release "$lease"`,
		Args:                  cobra.NoArgs,
		DisableFlagsInUseLine: true,
		RunE:                  func(cmd *cobra.Command, _ []string) error { return a.run(cmd.Context()) },
	}
	flags := cmd.Flags()
	flags.SortFlags = false
	flags.StringVarP(&a.pool, "pool", "p", "", "`name` of the pool to take the sandbox from")
	flags.DurationVar(&a.ttl, "ttl", 0, "end the lease after this `time`, such as 10m (default the pool's)")
	a.connect.register(flags)
	return cmd
}

func (a *acquireCommand) run(ctx context.Context) error {
	client, err := a.connect.client()
	if err != nil {
		return err
	}
	defer client.Close()
	lease, err := client.Acquire(ctx, a.pool, sandboxclient.WithTTL(a.ttl))
	if err != nil {
		return callError(ctx, err, "a lease that was granted ends with its time")
	}
	if _, err := fmt.Fprintln(a.out, lease.Handle()); err != nil {
		_ = release(ctx, lease) // nobody knows it; if this fails it ends with its time
		return fmt.Errorf("printing the handle: %w", err)
	}
	return nil
}

// releaseTimeout bounds giving a lease back.
const releaseTimeout = 2 * time.Minute

// release gives a lease back, whoever cancelled ctx.
func release(ctx context.Context, l *sandboxclient.Lease) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), releaseTimeout)
	defer cancel()
	return l.Release(ctx)
}

package main

import (
	"context"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/sandbox-broker/sandbox-broker/internal/version"
)

// versionTimeout bounds the wait for a broker's version.
const versionTimeout = 10 * time.Second

func newVersionCommand(s streams) *cobra.Command {
	var connect connectFlags
	var broker bool
	cmd := &cobra.Command{
		Use:   "version",
		Short: "Print the version, and the broker's",
		Args:  cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if _, err := fmt.Fprintln(s.out, version.String()); err != nil || !broker {
				return err
			}
			return printBrokerVersion(cmd.Context(), s, connect)
		},
	}
	cmd.Flags().BoolVar(&broker, "broker", false, "ask the broker for its version, and for what isolates its sandboxes")
	connect.register(cmd.Flags())
	return cmd
}

func printBrokerVersion(ctx context.Context, s streams, connect connectFlags) error {
	client, err := connect.client()
	if err != nil {
		return err
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(ctx, versionTimeout)
	defer cancel()
	v, err := client.BrokerVersion(ctx)
	if err != nil {
		return advise(err)
	}
	_, err = fmt.Fprintf(s.out, "broker at %s: %s\n", connect.url(), oneLine(v))
	return err
}

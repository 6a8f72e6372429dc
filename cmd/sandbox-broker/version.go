package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/sandbox-broker/sandbox-broker/internal/version"
)

func newVersionCommand(s streams) *cobra.Command {
	return &cobra.Command{
		Use:   "version",
		Short: "Print the version",
		Args:  cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			_, err := fmt.Fprintln(s.out, version.String())
			return err
		},
	}
}

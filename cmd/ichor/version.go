package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"ichor.maesh.dev/ichor/cmd/internal/version"
)

func versionCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "version",
		Short:   "Say which Ichor this is, and which Talos library it renders with",
		Example: "  ichor version",
		Args:    arguments(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			_, err := fmt.Fprintln(cmd.OutOrStdout(), "ichor "+version.String())
			return err
		},
	}
}

package main

import (
	"strings"

	"github.com/spf13/cobra"

	"ichor.maesh.dev/ichor/schemas"
)

func schemaCommand() *cobra.Command {
	return &cobra.Command{
		Use:     "schema [KIND]",
		Short:   "Print the JSON Schema of a kind, or the names of all kinds",
		Example: "  ichor schema\n  ichor schema TalosCluster > taloscluster.schema.json",
		Args:    arguments(cobra.MaximumNArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return text(cmd.OutOrStdout(), strings.Join(schemas.Kinds(), "\n")+"\n")
			}
			for _, kind := range schemas.Kinds() {
				if strings.EqualFold(kind, args[0]) {
					return text(cmd.OutOrStdout(), strings.TrimRight(string(schemas.JSONSchema(kind)), "\n")+"\n")
				}
			}
			return usagef("unknown kind %q; there are %s", args[0], strings.Join(schemas.Kinds(), ", "))
		},
	}
}

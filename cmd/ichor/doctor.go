package main

import (
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"ichor.maesh.dev/ichor/cmd/internal/config"
	"ichor.maesh.dev/ichor/cmd/internal/doctor"
)

// doctorCommand tries the configuration.
func doctorCommand() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "doctor",
		Short: "Try each part of the configuration: repository, forge, keys, state folder, secrets, nodes",
		Long: `Tries each part of the configuration of ichor run on its own, and says what to do about what fails. It takes the same
flags, file and variables, writes to no node, branch or forge, and exits 1 when something failed.`,
		Example: `  ichor doctor --repo https://github.com/you/fleet --token-file token --state-dir /var/lib/ichor
  ichor doctor --config /etc/ichor/ichor.yaml`,
		Args: arguments(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := loadConfig(cmd)
			if err != nil {
				return err
			}
			failed := 0
			marks := map[doctor.Level]string{doctor.OK: "✔", doctor.Warning: "!", doctor.Failed: "✘", doctor.Skipped: "–"}
			doctor.Examine(cmd.Context(), c, os.Getenv, func(f doctor.Finding) {
				if f.Level == doctor.Failed {
					failed++
				}
				fmt.Fprintf(cmd.OutOrStdout(), "%s %s: %s\n", marks[f.Level], f.Part, f.Message)
				if f.Hint != "" {
					fmt.Fprintf(cmd.OutOrStdout(), "    %s\n", f.Hint)
				}
			})
			if failed > 0 {
				return errFailed
			}
			return nil
		},
	}
	config.AddFlags(cmd.Flags())
	cmd.Flags().SortFlags = false
	return cmd
}

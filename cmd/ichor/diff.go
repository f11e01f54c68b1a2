package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"ichor.maesh.dev/ichor/status/report"
	"ichor.maesh.dev/ichor/validate/check"
)

func diffCommand() *cobra.Command {
	return partCommand(&cobra.Command{
		Use:   "diff [DIR]",
		Short: "Show what changes in the configuration of each machine, and what that does to the node",
		Long: "diff renders both sides and compares them by document and field path. Secret values are masked. Equal " +
			"changes of several machines are shown once.",
		Example: "  ichor diff\n  ichor diff --rev feature --base main",
	}, func(b *strings.Builder, r *check.Report) {
		report.Changes(b, r, false)
		if b.Len() == 0 {
			b.WriteString("no machine changes\n")
		}
	})
}

func planCommand() *cobra.Command {
	return partCommand(&cobra.Command{
		Use:   "plan [DIR]",
		Short: "Show the steps that a merge would cause, in order",
		Long: "plan predicts the steps from the commit alone; at run time the etcd leader goes last, and what is observed " +
			"can hold a step.",
		Example: "  ichor plan\n  ichor plan --rev feature --base main",
	}, func(b *strings.Builder, r *check.Report) {
		report.Steps(b, r)
		if b.Len() == 0 {
			b.WriteString("no steps\n")
		}
	})
}

// partCommand shows a part of a report. A failed check is said on the error output, and by the exit code.
func partCommand(cmd *cobra.Command, show func(*strings.Builder, *check.Report)) *cobra.Command {
	var s source
	cmd.Args = arguments(cobra.MaximumNArgs(1))
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		r, _, err := s.run(cmd, args, false)
		if err != nil {
			return err
		}
		var b strings.Builder
		show(&b, r)
		if err := text(cmd.OutOrStdout(), b.String()); err != nil {
			return fmt.Errorf("write %s: %w", cmd.Name(), err)
		}
		if r.Verdict != check.Passed {
			fmt.Fprintf(cmd.ErrOrStderr(), "ichor: the check fails: %s; see ichor check\n", report.Description(r))
		}
		return verdict(r)
	}
	s.flags(cmd)
	cmd.ValidArgsFunction = completeFolder
	return cmd
}

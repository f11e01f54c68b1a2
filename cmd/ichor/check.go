package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"ichor.maesh.dev/ichor/status/report"
	"ichor.maesh.dev/ichor/validate/check"
)

// outputs of ichor check, by the name that -o takes.
var outputs = []struct {
	name  string
	write func(io.Writer, *check.Report) error
}{
	{"text", func(w io.Writer, r *check.Report) error { return text(w, report.Text(r)) }},
	{"json", func(w io.Writer, r *check.Report) error {
		b, err := report.JSON(r)
		if err != nil {
			return err
		}
		return text(w, string(b))
	}},
	{"markdown", func(w io.Writer, r *check.Report) error { return text(w, report.Markdown(r, report.Options{})) }},
	{"github", func(w io.Writer, r *check.Report) error { return text(w, report.GitHub(r)) }},
}

func checkCommand() *cobra.Command {
	var s source
	output := "text"
	cmd := &cobra.Command{
		Use:   "check [DIR]",
		Short: "Check a folder or a commit: validate, render, compare, plan",
		Long: "check validates the YAML, renders the Talos configuration of every machine with stand-in secrets and says " +
			"what would change. It needs no daemon, no secrets and no network, and touches no node.\n\n" +
			"DIR (default: the working folder) is read as it is and compared with HEAD where it lies in a Git " +
			"repository: then that repository's root is what paths in manifests are relative to, and only DIR is " +
			"looked at. With --rev a commit is read instead, from Git's objects.\n\n" +
			"Exit codes: 0 passed, 1 failed, 2 usage (an unknown revision too), 3 Ichor's own fault.",
		Example: "  ichor check\n" +
			"  ichor check clusters/prod -o markdown\n" +
			"  ichor check --rev HEAD\n" +
			"  ichor check --rev feature --base main -o json\n" +
			"  ichor check --observed origin/ichor/status   # what was last seen of the nodes, as warnings\n" +
			"  ichor check -o github   # in a workflow: annotations at the lines",
		Args:              arguments(cobra.MaximumNArgs(1)),
		ValidArgsFunction: completeFolder,
		RunE: func(cmd *cobra.Command, args []string) error {
			write, err := outputNamed(output)
			if err != nil {
				return err
			}
			r, _, err := s.run(cmd, args, false)
			if err != nil {
				return err
			}
			if err := write(cmd.OutOrStdout(), r); err != nil {
				return fmt.Errorf("write report: %w", err)
			}
			return verdict(r)
		},
	}
	s.flags(cmd)
	cmd.Flags().StringVarP(&output, "output", "o", output, "`form` of the report: "+strings.Join(outputNames(), ", "))
	cmd.Flags().BoolVar(&s.resolve, "resolve", false, "look the names of backup stores up; what is found only warns")
	return cmd
}

func outputNames() []string {
	names := make([]string, len(outputs))
	for i, o := range outputs {
		names[i] = o.name
	}
	return names
}

func outputNamed(name string) (func(io.Writer, *check.Report) error, error) {
	for _, o := range outputs {
		if o.name == name {
			return o.write, nil
		}
	}
	return nil, usagef("unknown output %q: use %s", name, strings.Join(outputNames(), ", "))
}

// verdict turns a report into the end of a command.
func verdict(r *check.Report) error {
	if r.Verdict == check.Passed {
		return nil
	}
	return errFailed
}

func text(w io.Writer, s string) error {
	_, err := io.WriteString(w, s)
	return err
}

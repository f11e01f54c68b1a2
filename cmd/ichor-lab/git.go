package main

import (
	"fmt"
	"strconv"
	"text/tabwriter"

	"github.com/spf13/cobra"

	"ichor.maesh.dev/ichor/e2e/lab/cli"
	"ichor.maesh.dev/ichor/e2e/lab/forge"
)

func prCommand() *cobra.Command {
	return group("pr", "Open, push to, merge, close and list pull requests", "Drives the pull requests of the lab's forge. A plain git push to the forge works as well.",
		`  ichor-lab pr open --branch more-files --dir ./fleet-changed --title "More open files"
  ichor-lab pr open --branch eve:idea --dir ./fleet-evil        # from a fork of eve
  ichor-lab pr push 1 --dir ./fleet-changed
  ichor-lab pr merge 1
  ichor-lab pr close 1`, prOpenCommand(), prPushCommand(), prMergeCommand(), prCloseCommand(), prListCommand())
}

func prOpenCommand() *cobra.Command {
	in := cli.PullRequest{Act: "open"}
	var format string
	cmd := &cobra.Command{
		Use: "open --branch BRANCH", Short: "Open a pull request, with --dir from a folder's files",
		Long: `Opens a pull request of a branch that was pushed, or, with --dir, of a branch that is made from the base with
the folder's files as its whole content. OWNER:BRANCH is a branch of a fork, which is made when needed.`,
		Args: wants(cobra.NoArgs, "branch"),
		RunE: func(cmd *cobra.Command, _ []string) error { return doPull(cmd, format, in) },
	}
	f := cmd.Flags()
	f.StringVar(&in.Branch, "branch", "", "branch that is to be merged, or OWNER:BRANCH of a fork")
	f.StringVar(&in.Base, "base", "main", "branch to merge into")
	f.StringVar(&in.Title, "title", "", "title (default: the branch)")
	f.BoolVar(&in.Draft, "draft", false, "open it as a draft")
	f.StringVar(&in.Author, "author", "lab", "who opens it")
	dirFlags(cmd, &in)
	outputFlag(cmd, &format)
	return cmd
}

func dirFlags(cmd *cobra.Command, in *cli.PullRequest) {
	cmd.Flags().StringVar(&in.Dir, "dir", "", "folder whose files are committed on the branch first")
	cmd.Flags().StringVar(&in.Message, "message", "", "message of that commit")
	cmd.Flags().BoolVar(&in.Force, "force", false, "replace the last commit of the branch instead of adding one (a force push)")
}

func prPushCommand() *cobra.Command {
	in := cli.PullRequest{Act: "push"}
	cmd := numbered("push NUMBER --dir DIR", "Commit a folder's files on the branch of a pull request", &in)
	cmd.Args = wants(cobra.ExactArgs(1), "dir")
	dirFlags(cmd, &in)
	return cmd
}

func prMergeCommand() *cobra.Command {
	in := cli.PullRequest{Act: "merge"}
	cmd := numbered("merge NUMBER", "Merge a pull request, as its page's button does", &in)
	cmd.Flags().BoolVar(&in.Squash, "squash", false, "make one commit instead of a merge commit")
	cmd.Flags().StringVar(&in.Author, "author", "lab", "who merges it")
	return cmd
}

func prCloseCommand() *cobra.Command {
	return numbered("close NUMBER", "Close a pull request without merging it", &cli.PullRequest{Act: "close"})
}

// numbered is a command about the pull request of its argument.
func numbered(use, short string, in *cli.PullRequest) *cobra.Command {
	var format string
	cmd := &cobra.Command{Use: use, Short: short, Args: usage(cobra.ExactArgs(1))}
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		n, err := strconv.Atoi(args[0])
		if err != nil || n < 1 {
			return usageError{fmt.Errorf("pull request %q: want its number; ichor-lab pr list has them", args[0])}
		}
		in.Number = n
		return doPull(cmd, format, *in)
	}
	outputFlag(cmd, &format)
	return cmd
}

func doPull(cmd *cobra.Command, format string, in cli.PullRequest) error {
	var err error
	if in.Dir, err = absolute(in.Dir); err != nil {
		return err
	}
	p, err := client(cmd).Pull(cmd.Context(), in)
	if err != nil {
		return err
	}
	return show(cmd, format, p, func(w *tabwriter.Writer) {
		fmt.Fprintf(w, "#%d %s: %s\nhead %s\n", p.Number, p.Title, pullState(p.Pull), p.HeadSHA)
		if p.Merged {
			fmt.Fprintf(w, "merge %s\n", p.MergeCommit)
		}
		fmt.Fprintln(w, p.URL)
	})
}

func pullState(p forge.Pull) string {
	switch {
	case p.Merged:
		return "merged"
	case p.State == "open" && p.Draft:
		return "draft"
	}
	return p.State
}

func prListCommand() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use: "list", Short: "List all pull requests", Args: usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			pulls, err := client(cmd).Pulls(cmd.Context())
			if err != nil {
				return err
			}
			return show(cmd, format, pulls, func(w *tabwriter.Writer) {
				fmt.Fprintln(w, "NUMBER\tSTATE\tHEAD\tBASE\tCOMMIT\tTITLE")
				for _, p := range pulls {
					fmt.Fprintf(w, "%d\t%s\t%s\t%s\t%s\t%s\n", p.Number, pullState(p), p.Head, p.Base, p.HeadSHA, p.Title)
				}
			})
		},
	}
	outputFlag(cmd, &format)
	return cmd
}

func pushCommand() *cobra.Command {
	var o forge.PushOptions
	cmd := &cobra.Command{
		Use: "push", Short: "Commit a folder's files on a branch of the forge",
		Long: `Commits the files of a folder (the lab's repository, unless --dir names another) as the whole content of a
branch, as somebody's push would. With --force the last commit is replaced; with --orphan the branch gets a
history that has nothing to do with the old one.`,
		Example: `  ichor-lab push
  ichor-lab push --dir ./fleet-broken --message "Break it"
  ichor-lab push --force`,
		Args: usage(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			var err error
			if o.Dir, err = absolute(o.Dir); err != nil {
				return err
			}
			b, err := client(cmd).Push(cmd.Context(), o)
			if err != nil {
				return err
			}
			fmt.Fprintf(cmd.OutOrStdout(), "%s is at %s\n", b.Name, b.SHA)
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&o.Dir, "dir", "", "folder (default: the lab's repository)")
	f.StringVar(&o.Branch, "branch", "main", "branch")
	f.StringVar(&o.Message, "message", "Update", "message of the commit")
	f.StringVar(&o.Author, "author", "lab", "who pushes")
	f.BoolVar(&o.Force, "force", false, "replace the last commit (a force push)")
	f.BoolVar(&o.Orphan, "orphan", false, "with --force: no history at all")
	return cmd
}

func statusCommand() *cobra.Command {
	var format string
	cmd := &cobra.Command{
		Use: "status SHA", Short: "Show the commit statuses of a commit (or a branch's tip)",
		Example: "  ichor-lab status main\n  ichor-lab status 3f2a91c -o json",
		Args:    usage(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, args []string) error {
			st, err := client(cmd).Status(cmd.Context(), args[0])
			if err != nil {
				return err
			}
			return show(cmd, format, st, func(w *tabwriter.Writer) {
				fmt.Fprintf(w, "commit %s\n", st.SHA)
				if len(st.Statuses) == 0 {
					fmt.Fprintln(w, "no status was posted")
					return
				}
				fmt.Fprintln(w, "CONTEXT\tSTATE\tDESCRIPTION\tREPORT")
				for _, s := range st.Statuses {
					fmt.Fprintf(w, "%s\t%s\t%s\t%s\n", s.Context, s.State, s.Description, dash(s.TargetURL))
				}
			})
		},
	}
	outputFlag(cmd, &format)
	return cmd
}

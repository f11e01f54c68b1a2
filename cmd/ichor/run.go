package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"ichor.maesh.dev/ichor/cmd/internal/config"
	"ichor.maesh.dev/ichor/cmd/internal/daemon"
)

// runCommand is the daemon.
func runCommand() *cobra.Command {
	var once bool
	cmd := &cobra.Command{
		Use:   "run",
		Short: "Check commits, bring the watched branch to the nodes, report back (the daemon)",
		Long: `Watches a repository: every commit and pull request is checked and gets the commit status ichor/check; the watched
branch is applied to the nodes, one control plane at a time; reachability and rollout come back as commit statuses, on
the status branch and as metrics.

Every flag is also a key of the configuration file (--config) and an ICHOR_* variable; docs/configuration.md lists
them. Secrets come from files and from the environment: the age identities that open the secrets bundles from
SOPS_AGE_KEY or SOPS_AGE_KEY_FILE.

Begin with a running cluster by --mode observe: everything is read and reported, no node is written.`,
		Example: `  ichor run --repo https://github.com/you/fleet --token-file token --state-dir /var/lib/ichor
  ichor run --config /etc/ichor/ichor.yaml
  ichor run --config ichor.yaml --once --mode observe`,
		Args: arguments(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := loadConfig(cmd)
			if err != nil {
				return err
			}
			log := newLogger(c.Log, cmd.ErrOrStderr())
			parts, err := daemon.Open(cmd.Context(), c, log, os.Getenv)
			if err != nil {
				return fmt.Errorf("start: %w", err)
			}
			defer parts.Close()
			return daemon.Run(cmd.Context(), parts, once)
		},
	}
	config.AddFlags(cmd.Flags())
	cmd.Flags().SortFlags = false
	cmd.Flags().BoolVar(&once, "once", false, "do one pass and end: exit 0 when it was done, whatever it found")
	return cmd
}

func loadConfig(cmd *cobra.Command) (config.Config, error) {
	c, err := config.Load(cmd.Flags(), os.Environ())
	if errors.Is(err, config.ErrUsage) {
		return c, &exitError{exitUsage, err}
	}
	return c, err
}

// newLogger writes text to a terminal and JSON elsewhere, unless the configuration says which.
func newLogger(c config.Log, w io.Writer) *slog.Logger {
	levels := map[string]slog.Level{
		"debug": slog.LevelDebug, "info": slog.LevelInfo, "warn": slog.LevelWarn, "error": slog.LevelError,
	}
	opt := &slog.HandlerOptions{Level: levels[c.Level]}
	text := c.Format == "text"
	if f, ok := w.(*os.File); ok && c.Format == "auto" {
		text = term.IsTerminal(int(f.Fd()))
	}
	if text {
		return slog.New(slog.NewTextHandler(w, opt))
	}
	return slog.New(slog.NewJSONHandler(w, opt))
}

// Command ichor checks repositories of Talos clusters and brings their watched branch to the nodes. main parses flags
// and runs; what it runs lives elsewhere.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

// Exit codes, the same for every command.
const (
	exitOK = 0
	// exitFailed: the check failed.
	exitFailed = 1
	// exitUsage: the command line is wrong, an unknown revision included.
	exitUsage = 2
	// exitFault: Ichor's own fault, or that of its surroundings.
	exitFault = 3
)

// exitError carries an exit code. An empty text prints nothing: the output said it all.
type exitError struct {
	code int
	err  error
}

func (e *exitError) Error() string {
	if e.err == nil {
		return ""
	}
	return e.err.Error()
}

func (e *exitError) Unwrap() error { return e.err }

// usagef is an error of the command line.
func usagef(format string, args ...any) error {
	return &exitError{exitUsage, fmt.Errorf(format, args...)}
}

// failed ends a command whose output says why.
var errFailed = &exitError{code: exitFailed}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// run executes one command line and gives its exit code.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	root := newRootCommand()
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return exitOK
	}
	code := exitFault
	var coded *exitError
	if errors.As(err, &coded) {
		code = coded.code
	}
	if text := err.Error(); text != "" {
		fmt.Fprintln(stderr, "ichor: "+text)
		if code == exitUsage {
			fmt.Fprintln(stderr, "See ichor --help.")
		}
	}
	return code
}

// newRootCommand puts the commands together. Each has its own file.
func newRootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "ichor",
		Short: "GitOps for Talos Linux clusters",
		Long: "Ichor checks every commit of a repository of Talos clusters, brings the watched branch to the nodes " +
			"through the Talos API, and reports back.",
		SilenceErrors: true,
		SilenceUsage:  true,
		Args:          cobra.ArbitraryArgs,
		RunE: func(cmd *cobra.Command, args []string) error {
			if len(args) == 0 {
				return cmd.Help()
			}
			return unknownCommand(cmd, args[0])
		},
	}
	root.SetFlagErrorFunc(func(_ *cobra.Command, err error) error { return &exitError{exitUsage, err} })
	root.SuggestionsMinimumDistance = 2
	root.CompletionOptions.HiddenDefaultCmd = false
	root.AddCommand(commands()...)
	root.SetHelpCommand(helpCommand())
	completionUsage(root)
	return root
}

// completionUsage makes wrong arguments of cobra's completion command errors of usage, as everywhere else: a misspelt
// shell would print help into the shell that sources it, and succeed.
func completionUsage(root *cobra.Command) {
	root.InitDefaultCompletionCmd("completion")
	for _, cmd := range root.Commands() {
		if cmd.Name() != "completion" {
			continue
		}
		cmd.Args = arguments(cobra.NoArgs)
		cmd.RunE = func(cmd *cobra.Command, _ []string) error { return cmd.Help() }
		for _, shell := range cmd.Commands() {
			shell.Args = arguments(cobra.NoArgs)
		}
	}
}

// commands lists every command; a new one is a new file and one line here.
func commands() []*cobra.Command {
	return []*cobra.Command{
		runCommand(),
		doctorCommand(),
		ackCommand(),
		genDocsCommand(),
		checkCommand(),
		renderCommand(),
		diffCommand(),
		planCommand(),
		initCommand(),
		adoptCommand(),
		schemaCommand(),
		versionCommand(),
	}
}

// helpCommand is cobra's, but a topic that is not there is an error of usage.
func helpCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "help [COMMAND]",
		Short: "Show the help of a command",
		RunE: func(cmd *cobra.Command, args []string) error {
			found, rest, err := cmd.Root().Find(args)
			if err != nil || found == cmd.Root() && len(rest) > 0 {
				return unknownCommand(cmd.Root(), args[0])
			}
			if len(rest) > 0 {
				return usagef("unknown command %q of %s", rest[0], found.CommandPath())
			}
			return found.Help()
		},
	}
}

func unknownCommand(cmd *cobra.Command, name string) error {
	if near := cmd.SuggestionsFor(name); len(near) > 0 {
		return usagef("unknown command %q; did you mean %s?", name, strings.Join(near, " or "))
	}
	return usagef("unknown command %q", name)
}

// arguments bounds the number of arguments; what is wrong is an error of usage.
func arguments(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return usagef("%w; usage: %s", err, cmd.UseLine())
		}
		return nil
	}
}

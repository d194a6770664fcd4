// Command petstore is an HTTP API for pets, categories, orders and inventory on
// PostgreSQL. See `petstore --help`.
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
)

const (
	exitFailure = 1
	exitUsage   = 2
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Environ(), os.Stdout, os.Stderr)
	stop()
	if err == nil {
		return
	}
	fmt.Fprintf(os.Stderr, "petstore: %v\n", err)
	if _, ok := errors.AsType[*usageError](err); ok {
		os.Exit(exitUsage)
	}
	os.Exit(exitFailure)
}

// run is the program, without the process around it: it ends when ctx does. An
// error is one sentence for stderr; a [usageError] is a mistake on the command line.
func run(ctx context.Context, args, environ []string, stdout, stderr io.Writer) error {
	p := &program{environ: environ, stdout: stdout, stderr: stderr}
	root := &cobra.Command{
		Use:   "petstore",
		Short: "An HTTP API for pets, categories, orders and inventory on PostgreSQL",
		Long: `Petstore is an HTTP API for pets, categories, orders and inventory on PostgreSQL.

On a developer's machine, "petstore dev" is all in one: a database of its own,
sample data and an API key. In production, "petstore migrate up" moves the schema
at deploy time and "petstore serve" answers requests; both read DATABASE_URL.`,
		Example:       "  petstore dev",
		Args:          usage(cobra.NoArgs),
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.SetArgs(args)
	root.SetOut(stdout)
	root.SetErr(stderr)
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return &usageError{fmt.Errorf("%w; see %s --help", err, cmd.CommandPath())}
	})
	root.AddCommand(
		p.serveCommand(), p.devCommand(), p.migrateCommand(), p.keyCommand(),
		p.seedCommand(), p.openAPICommand(), p.healthcheckCommand(), p.versionCommand(),
	)
	return root.ExecuteContext(ctx)
}

// program is what every command works with.
type program struct {
	environ        []string
	stdout, stderr io.Writer
}

// usageError is a mistake on the command line, in contrast to one of the world.
type usageError struct{ error }

func (e *usageError) Unwrap() error { return e.error }

// usage makes what a check of the arguments finds a [usageError].
func usage(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return &usageError{fmt.Errorf("%w; see %s --help", err, cmd.CommandPath())}
		}
		return nil
	}
}

// oneOf is the check that a flag has one of the values known.
func oneOf(flag, value string, known ...string) error {
	if slices.Contains(known, value) {
		return nil
	}
	return &usageError{fmt.Errorf("--%s is %q, but takes one of %s", flag, value, strings.Join(known, ", "))}
}

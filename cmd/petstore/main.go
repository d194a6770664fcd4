// Command petstore is an HTTP API for pets, categories, orders and inventory on
// PostgreSQL. See `petstore --help`.
package main

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/spf13/cobra"
	_ "golang.org/x/crypto/x509roots/fallback" // the container image has no certificate authorities

	"petstore/internal/postgres"
)

const (
	exitFailure = 1
	exitUsage   = 2
)

func main() {
	signals := []os.Signal{os.Interrupt, syscall.SIGTERM}
	if !signal.Ignored(syscall.SIGHUP) { // nohup ignores it
		signals = append(signals, syscall.SIGHUP)
	}
	ctx, stop := signal.NotifyContext(context.Background(), signals...)
	slog.SetDefault(slog.New(slog.DiscardHandler)) // net/http logs the bytes of servers that do not speak HTTP, and returns an error too
	err := run(ctx, os.Args[1:], &program{environ: os.Environ(), stdin: os.Stdin, stdout: os.Stdout, stderr: os.Stderr})
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

// run runs a command until it ends or ctx is canceled. The error is one sentence
// for stderr; a [usageError] is a mistake on the command line.
func run(ctx context.Context, args []string, p *program) error {
	out := &output{Writer: p.stdout}
	p.stdout = out
	root := p.rootCommand()
	root.SetArgs(args)
	return plain(cmp.Or(root.ExecuteContext(ctx), out.err))
}

func (p *program) rootCommand() *cobra.Command {
	root := &cobra.Command{
		Use:   "petstore",
		Short: "An HTTP API for pets, categories, orders and inventory on PostgreSQL",
		Long: `Petstore is an HTTP API for pets, categories, orders and inventory on PostgreSQL.

For development, "petstore dev" runs everything: the API, its own database,
sample data and an API key. In production, "petstore migrate up" migrates the schema
at deploy time and "petstore serve" serves requests; both read DATABASE_URL.`,
		Example:       "  petstore dev",
		Args:          noArguments,
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		Version:       version(),
		SilenceUsage:  true,
		SilenceErrors: true,

		PersistentPreRunE: refuseEmptyFlags,
	}
	root.SetOut(p.stdout)
	root.SetErr(p.stderr)
	root.SetFlagErrorFunc(wrongFlag)
	root.SetVersionTemplate(versionLine())
	root.AddCommand(
		reads(p.serveCommand(), serverVariables()...), reads(p.workerCommand(), serverVariables()...),
		reads(p.devCommand(), append(serverVariables(), "PETSTORE_PG_BIN")...), reads(p.migrateCommand(), migrateVariables...), reads(p.afterRestoreCommand(), migrateVariables[:2]...),
		reads(p.accountCommand(), databaseVariables...), reads(p.keyCommand(), databaseVariables...),
		reads(p.sandboxCommand(), databaseVariables...), reads(p.seedCommand(), "DATABASE_URL", "PETSTORE_DIRECT_URL", "PETSTORE_DB_MAX_CONNS"),
		reads(p.listenCommand(), clientVariables...), reads(p.apiCommand(), clientVariables...), reads(p.triggerCommand(), clientVariables...),
		reads(p.logsCommand(), clientVariables...), reads(p.reportCommand(), clientVariables...), reads(p.importCommand(), clientVariables...), reads(p.exportCommand(), clientVariables...),
		reads(p.openAPICommand(), "PETSTORE_BASE_URL"), reads(p.healthcheckCommand(), "PETSTORE_ADDR", "PETSTORE_TLS_CERT_FILE"),
		reads(p.configCommand(), variables()...), reads(p.doctorCommand(), serverVariables()...), p.versionCommand(), p.manCommand(),
	)
	showEnvironment(root)
	addCobraCommands(root)
	return root
}

// outliveReaders lets the process go on after the program that reads its stdout or stderr has ended.
func outliveReaders() { signal.Ignore(syscall.SIGPIPE) }

// program has the environment and the streams of a command.
type program struct {
	environ        []string
	dir            string // in which a command looks for a running dev; "": the working directory
	stdin          io.Reader
	stdout, stderr io.Writer
}

// output is the stdout of a command, which fails at its end if a write has failed.
type output struct {
	io.Writer

	err error // the first
}

// Write implements [io.Writer].
func (o *output) Write(text []byte) (int, error) {
	n, err := o.Writer.Write(text)
	if !errors.Is(err, syscall.EPIPE) { // see [outliveReaders]
		o.err = cmp.Or(o.err, err)
	}
	return n, err
}

// plain returns the error as one sentence for users.
func plain(err error) error {
	if _, ok := errors.AsType[*usageError](err); ok || err == nil {
		return err
	}
	if errors.Is(err, context.Canceled) {
		return errors.New("interrupted")
	}
	if sentence := postgres.Explain(err); sentence != "" {
		return errors.New(sentence)
	}
	text := err.Error()
	if file, ok := errors.AsType[*fs.PathError](err); ok {
		text = strings.Replace(text, file.Error(), fmt.Sprintf("cannot %s %s: %v", file.Op, file.Path, file.Err), 1)
	}
	return errors.New(oneLine(text))
}

// oneLine joins the lines of a text with semicolons.
func oneLine(text string) string {
	return strings.Join(strings.FieldsFunc(text, func(r rune) bool { return r == '\n' || r == '\t' }), "; ")
}

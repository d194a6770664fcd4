package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"petstore/db"
	"petstore/internal/account"
	"petstore/internal/api"
	"petstore/internal/postgres"
)

var sampleRule = textRule{"must have 1 to 50 lowercase letters, digits and hyphens, and must not begin with a hyphen", account.IsSampleName}

func (p *program) sandboxCommand() *cobra.Command {
	return group(&cobra.Command{
		Use:   "sandbox",
		Short: "Create, list, reset and delete sandboxes",
		Long: `A sandbox is a temporary account for a test run or a demo. Its store is its own and
starts as a copy of a sample. It shares the limits of the account that it belongs to. When
it expires, its API keys stop and a running server deletes its data.`,
		Example: "  petstore sandbox create --account demo",
	}, p.sandboxCreateCommand(), p.sandboxListCommand(), p.sandboxResetCommand(), p.sandboxDeleteCommand())
}

func (p *program) sandboxCreateCommand() *cobra.Command {
	var owner, expiresIn string
	var asJSON bool
	sandbox := account.NewSandbox{Name: account.DefaultName, Sample: account.SampleShop}
	command := &cobra.Command{
		Use:   "create",
		Short: "Create a sandbox with an admin key",
		Long: `Create creates a sandbox of an account. It prints only its admin key on stdout, and its
id on stderr. The key is shown only once and expires with the sandbox. With --json, it
prints a JSON object with id, name, sample, createdAt, expiresAt and apiKey, whose secret
is the key.`,
		Example: "  petstore sandbox create --account demo --sample empty --expires-in 1h\n" +
			"  petstore sandbox create --account demo --json",
		Args: noArguments,
		RunE: func(cmd *cobra.Command, _ []string) (err error) {
			if owner == "" {
				return wrongUsage(cmd, "--account is required: name the account of the new sandbox")
			}
			if sandbox.Expiry, err = parseDays(expiresIn); err != nil || sandbox.Expiry < account.MinExpiry || sandbox.Expiry > account.MaxExpiry || sandbox.Expiry%time.Second != 0 {
				return wrongUsage(cmd, "--expires-in must be a duration from 1m to 7d in whole seconds, such as 24h, but is %q", expiresIn)
			}
			return p.withDatabase(cmd.Context(), func(ctx context.Context, database *postgres.DB) error {
				made, err := createSandbox(ctx, database, owner, sandbox)
				if err != nil {
					return err
				}
				if asJSON {
					return p.printJSON(api.NewSandboxFrom(made))
				}
				fmt.Fprintln(p.stdout, made.Secret.Reveal())
				fmt.Fprintf(p.stderr, "created %s\n", api.NewSandboxFrom(made).ID)
				return nil
			})
		},
	}
	flags := command.Flags()
	flags.StringVar(&owner, "account", "", "the name of the account that the sandbox belongs to (required)")
	addTextFlag(command, &sandbox.Name, "name", nameRule, "a label for the sandbox")
	addTextFlag(command, &sandbox.Sample, "sample", sampleRule, "the sample that the sandbox starts as: shop, empty or one that you have saved")
	flags.StringVar(&expiresIn, "expires-in", "24h", "how long the sandbox exists, from 1m to 7d")
	flags.BoolVar(&asJSON, "json", false, "print the sandbox and its key as a JSON object")
	completeFlag(command, "sample", account.BuiltInSamples()...)
	completeFlag(command, "expires-in", "1h", "24h", "7d")
	return command
}

// createSandbox creates a sandbox of the account with a name.
func createSandbox(ctx context.Context, database *postgres.DB, name string, sandbox account.NewSandbox) (made account.Created, err error) {
	err = transact(ctx, database, func(ctx context.Context, queries *db.Queries) error {
		owner, err := findAccount(ctx, queries, name)
		if err != nil {
			return err
		}
		sandbox.ParentID = owner.ID
		made, err = account.CreateSandbox(ctx, queries, sandbox)
		switch {
		case errors.Is(err, account.ErrTooManySandboxes):
			return fmt.Errorf("the account %q has %d live sandboxes, or %d with those being deleted, which is the maximum; delete one, or wait a few minutes", name, account.MaxSandboxes, account.MaxStored)
		case errors.Is(err, account.ErrNoSample):
			return fmt.Errorf("the account %q has no sample %s; petstore api /samples with a key of scope admin shows its samples", name, sandbox.Sample)
		case errors.Is(err, account.ErrClosed): // deleted meanwhile
			return noAccount(name)
		}
		return err
	})
	return made, err
}

func (p *program) sandboxListCommand() *cobra.Command {
	return listCommand(p, listing[api.Sandbox]{
		short:     "List the sandboxes of an account",
		example:   "  petstore sandbox list --account demo",
		resources: "sandboxes",
		fields:    "id, name, sample, createdAt and expiresAt",
		header:    "ID\tNAME\tSAMPLE\tCREATED\tEXPIRES",
		row: func(one api.Sandbox) string {
			return strings.Join([]string{one.ID, one.Name, one.Sample, formatTime(&one.CreatedAt, ""), formatTime(one.ExpiresAt, "")}, "\t")
		},
		read: func(ctx context.Context, queries *db.Queries, accountID int64) (all []api.Sandbox, err error) {
			rows, err := queries.SandboxList(ctx, db.SandboxListParams{ParentID: accountID, PageSize: account.MaxSandboxes})
			for _, row := range rows {
				all = append(all, api.SandboxFrom(row))
			}
			return all, err
		},
	})
}

func (p *program) sandboxResetCommand() *cobra.Command {
	return &cobra.Command{
		Use:   "reset ID",
		Short: "Return a sandbox to its sample",
		Long: `Reset deletes the store of a sandbox and copies its sample again, in one
transaction. Its API keys, webhooks, faults and record stay. It does not ask for confirmation.`,
		Example: "  petstore sandbox reset sbx_1002",
		Args:    oneSandbox,
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.withSandbox(cmd.Context(), args[0], func(ctx context.Context, database *postgres.DB, sandbox db.SandboxGetRow) error {
				err := transact(ctx, database, func(ctx context.Context, queries *db.Queries) error {
					_, err := account.Reset(ctx, queries, sandbox.ID)
					return err
				})
				if errors.Is(err, account.ErrClosed) { // deleted meanwhile
					return noSandbox(args[0])
				}
				if err != nil {
					return err
				}
				fmt.Fprintf(p.stdout, "reset sandbox %s (%s)\n", args[0], sandbox.Name)
				return nil
			})
		},
	}
}

func (p *program) sandboxDeleteCommand() *cobra.Command {
	var yes bool
	command := &cobra.Command{
		Use:   "delete ID",
		Short: "Delete a sandbox with its store and its keys",
		Long: `Delete deletes a sandbox. Its API keys stop within a second on every server. A running
server then deletes the data in the background. If none runs, the next one deletes it
after its start. It asks for confirmation. Scripts without a terminal need --yes.`,
		Example: "  petstore sandbox delete sbx_1002 --yes",
		Args:    oneSandbox,
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.withSandbox(cmd.Context(), args[0], func(ctx context.Context, database *postgres.DB, sandbox db.SandboxGetRow) error {
				name := fmt.Sprintf("sandbox %s (%s)", args[0], sandbox.Name)
				return p.remove(ctx, cmd, database, removal{
					yes: yes, id: sandbox.ID, what: "the " + name + " with its store and its keys", done: name, gone: noSandbox(args[0]),
				})
			})
		},
	}
	command.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask for confirmation")
	return command
}

// oneSandbox validates that a command has one argument, which is the id of a sandbox.
func oneSandbox(cmd *cobra.Command, args []string) error {
	if err := oneArgument("the id of one sandbox")(cmd, args); err != nil {
		return err
	}
	if _, ok := account.ParseSandboxID(args[0]); !ok {
		return wrongUsage(cmd, "the id of a sandbox is sbx_ and a number, such as sbx_1002, but is %q", args[0])
	}
	return nil
}

// withSandbox runs an action on the live sandbox with an id that [oneSandbox] has validated.
func (p *program) withSandbox(ctx context.Context, id string, action func(context.Context, *postgres.DB, db.SandboxGetRow) error) error {
	return p.withDatabase(ctx, func(ctx context.Context, database *postgres.DB) error {
		sandbox, err := findSandbox(ctx, db.New(database), id)
		if err != nil {
			return err
		}
		return action(ctx, database, sandbox)
	})
}

// findSandbox returns the live sandbox with an id that [oneSandbox] has validated. The
// error says so if there is none.
func findSandbox(ctx context.Context, queries *db.Queries, id string) (db.SandboxGetRow, error) {
	number, _ := account.ParseSandboxID(id)
	row, err := queries.AccountGet(ctx, number)
	if errors.Is(err, pgx.ErrNoRows) || err == nil && row.ParentID == nil {
		return db.SandboxGetRow{}, noSandbox(id)
	}
	if err != nil {
		return db.SandboxGetRow{}, err
	}
	sandbox, err := queries.SandboxGet(ctx, db.SandboxGetParams{ID: number, ParentID: *row.ParentID})
	if errors.Is(err, pgx.ErrNoRows) {
		err = noSandbox(id)
	}
	return sandbox, err
}

func noSandbox(id string) error {
	return fmt.Errorf("there is no sandbox %s, or it is deleted or expired; petstore sandbox list --account NAME shows the sandboxes of an account", id)
}

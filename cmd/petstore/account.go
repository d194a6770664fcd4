package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"petstore/db"
	"petstore/internal/account"
	"petstore/internal/postgres"
)

const accountsPerPage = 1000 // read in one query

// accountObject is an account in the output of --json.
type accountObject struct {
	ID        string    `json:"id"`
	Name      string    `json:"name"`
	CreatedAt time.Time `json:"createdAt"`
}

func (p *program) accountCommand() *cobra.Command {
	return group(&cobra.Command{
		Use:   "account",
		Short: "Create, list and delete accounts",
		Long: `Each account has a store of its own: categories, pets, inventory, orders and
messages. An API key sees and changes the store of its account only.`,
		Example: "  petstore account create acme",
	}, p.accountCreateCommand(), p.accountListCommand(), p.accountDeleteCommand())
}

func (p *program) accountCreateCommand() *cobra.Command {
	var asJSON bool
	command := &cobra.Command{
		Use:   "create NAME",
		Short: "Create an account with an empty store",
		Long: `Create creates an account with an empty store and prints only its id on stdout. The
account has no API keys yet: "petstore key create --account NAME" creates one, and the
account too if it does not exist.`,
		Example: "  petstore account create acme\n  petstore account create acme --json",
		Args:    oneArgument("the name of one account"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if !isName(args[0]) {
				return wrongUsage(cmd, "the name %s", nameRule.text)
			}
			return p.withDatabase(cmd.Context(), func(ctx context.Context, database *postgres.DB) error {
				made, err := createAccount(ctx, database, args[0])
				if err != nil {
					return err
				}
				if asJSON {
					return p.printJSON(accountObject{account.PublicID(made.ID, false), made.Name, made.CreatedAt.UTC()})
				}
				fmt.Fprintln(p.stdout, account.PublicID(made.ID, false))
				return nil
			})
		},
	}
	command.Flags().BoolVar(&asJSON, "json", false, "print the account as a JSON object with id, name and createdAt")
	return command
}

// createAccount creates an account. The error says so if the name is taken.
func createAccount(ctx context.Context, database *postgres.DB, name string) (made db.AccountCreateRow, err error) {
	err = transact(ctx, database, func(ctx context.Context, queries *db.Queries) error {
		if made, err = queries.AccountCreate(ctx, name); err != nil {
			return err
		}
		return queries.AccountStateEnsure(ctx, made.ID)
	})
	if postgres.IsUniqueViolation(err) {
		err = fmt.Errorf("there is already an account %q; choose another name", name)
	}
	return made, err
}

func (p *program) accountListCommand() *cobra.Command {
	return listCommand(p, listing[accountObject]{
		short:   "List the accounts, without their sandboxes",
		example: "  petstore account list --json",
		fields:  "id, name and createdAt",
		header:  "ID\tNAME\tCREATED",
		row: func(one accountObject) string {
			return one.ID + "\t" + one.Name + "\t" + formatTime(&one.CreatedAt, "")
		},
		read: listAccounts,
	})
}

func listAccounts(ctx context.Context, queries *db.Queries, _ int64) (all []accountObject, err error) {
	for page := (db.AccountListParams{PageSize: accountsPerPage}); ; {
		rows, err := queries.AccountList(ctx, page)
		if err != nil {
			return nil, err
		}
		for _, row := range rows {
			all = append(all, accountObject{account.PublicID(row.ID, false), row.Name, row.CreatedAt.UTC()})
		}
		if len(rows) < accountsPerPage {
			return all, nil
		}
		page.AfterID = rows[len(rows)-1].ID
	}
}

func (p *program) accountDeleteCommand() *cobra.Command {
	var yes bool
	command := &cobra.Command{
		Use:   "delete NAME",
		Short: "Delete an account with its store, its keys and its sandboxes",
		Long: `Delete deletes an account. Its API keys and its sandboxes' keys stop within a second
on every server, and its name is free at once. A running server then deletes the data
in the background. If none runs, the next one deletes it after its start. This cannot
be undone. It asks for confirmation. Scripts without a terminal need --yes.`,
		Example: "  petstore account delete acme --yes",
		Args:    oneArgument("the name of one account"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return p.withDatabase(cmd.Context(), func(ctx context.Context, database *postgres.DB) error {
				owner, err := findAccount(ctx, db.New(database), args[0])
				if err != nil {
					return err
				}
				what := fmt.Sprintf("the account %q with its store, its keys and its sandboxes", owner.Name)
				if !yes {
					if err := p.confirm(ctx, nameOf(cmd)+" deletes "+what, "Delete "+what+"?", "deleted"); err != nil {
						return err
					}
				}
				if err := deleteAccount(ctx, database, owner); err != nil {
					return err
				}
				fmt.Fprintf(p.stdout, "deleted account %s (%s)\n", account.PublicID(owner.ID, false), owner.Name)
				return nil
			})
		},
	}
	command.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask for confirmation")
	return command
}

// findAccount returns the account with a name. The error says so if there is none.
func findAccount(ctx context.Context, queries *db.Queries, name string) (db.AccountGetByNameRow, error) {
	owner, err := queries.AccountGetByName(ctx, name)
	if errors.Is(err, pgx.ErrNoRows) {
		err = noAccount(name)
	}
	return owner, err
}

func noAccount(name string) error {
	return fmt.Errorf("there is no account %q; petstore account list shows all accounts", name)
}

func deleteAccount(ctx context.Context, database *postgres.DB, owner db.AccountGetByNameRow) error {
	err := transact(ctx, database, func(ctx context.Context, queries *db.Queries) error {
		deleted, err := account.Delete(ctx, queries, owner.ID)
		if err == nil && !deleted { // by another process
			err = noAccount(owner.Name)
		}
		return err
	})
	if postgres.IsLockTimeout(err) {
		return errStoreBusy
	}
	return err
}

// errStoreBusy is the error of a deletion that waited too long for a lock.
var errStoreBusy = errors.New("the store is being written, for example by petstore seed; retry later")

// transact runs an action in a transaction. It repeats the action after an error that a
// retry can resolve.
func transact(ctx context.Context, database *postgres.DB, action func(context.Context, *db.Queries) error) error {
	_, err := postgres.Transact(ctx, database, func(ctx context.Context, tx pgx.Tx) (struct{}, error) {
		return struct{}{}, action(ctx, db.New(tx))
	})
	return err
}

// printJSON prints a value as one line of JSON.
func (p *program) printJSON(value any) error {
	encoder := json.NewEncoder(p.stdout)
	encoder.SetEscapeHTML(false)
	return encoder.Encode(value)
}

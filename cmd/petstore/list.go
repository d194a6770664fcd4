package main

import (
	"context"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"petstore/db"
	"petstore/internal/postgres"
)

// listing is a command that lists the resources of an account, or the accounts.
type listing[T any] struct {
	short, example string
	// resources are the resources of the account that --account names. Without them, there is no --account.
	resources string
	fields    string // of a resource in the output of --json
	header    string // of the table
	row       func(T) string
	read      func(ctx context.Context, queries *db.Queries, accountID int64) ([]T, error)
}

func listCommand[T any](p *program, l listing[T]) *cobra.Command {
	var name string
	var asJSON bool
	command := &cobra.Command{
		Use:     "list",
		Short:   l.short,
		Example: l.example,
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if l.resources != "" && name == "" {
				return wrongUsage(cmd, "--account is required: name the account whose %s to list", l.resources)
			}
			return p.withDatabase(cmd.Context(), func(ctx context.Context, database *postgres.DB) error {
				all, err := l.all(ctx, db.New(database), name)
				if err != nil {
					return err
				}
				return printList(p, asJSON, l.header, all, l.row)
			})
		},
	}
	if l.resources != "" {
		command.Flags().StringVar(&name, "account", "", "the name of the account (required)")
	}
	command.Flags().BoolVar(&asJSON, "json", false, "print a JSON array of objects with "+l.fields)
	return command
}

// all returns the resources of the account with a name. They are never nil, because --json prints an array.
func (l listing[T]) all(ctx context.Context, queries *db.Queries, name string) ([]T, error) {
	var owner db.AccountGetByNameRow
	if l.resources != "" {
		var err error
		if owner, err = findAccount(ctx, queries, name); err != nil {
			return nil, err
		}
	}
	all, err := l.read(ctx, queries, owner.ID)
	if all == nil {
		all = []T{}
	}
	return all, err
}

// printList prints a list as JSON, or as rows below a header. Tabs separate the cells of both.
func printList[T any](p *program, asJSON bool, header string, all []T, row func(T) string) error {
	if asJSON {
		return p.printJSON(all)
	}
	table := tabwriter.NewWriter(p.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, header)
	for _, one := range all {
		fmt.Fprintln(table, row(one))
	}
	return table.Flush()
}

// formatTime formats a time for a table. Without a time, it returns otherwise.
func formatTime(at *time.Time, otherwise string) string {
	if at == nil {
		return otherwise
	}
	return at.Format(time.RFC3339)
}

package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"petstore/internal/postgres"
)

// addMigrateUp adds the command up.
func (p *program) addMigrateUp(add func(name, short, long string, action migrateAction) *cobra.Command) {
	var dryRun, asJSON bool
	up := add("up", "Apply every pending migration",
		`Up applies every pending migration, each in its own transaction if it can run in one.

With --dry-run it changes nothing. It prints the SQL of the pending migrations and the
locks that they take on existing tables, and which requests wait for these locks. While a
migration itself waits for a lock, later requests that conflict with it wait too.

The locks were measured when the migrations were written, in an empty database on
PostgreSQL 15 and 18. So they are exact there, but do not say how long a migration takes.
They do not include locks on shards of a Citus cluster, and on tables and triggers that
you have added. The SQL does not include the privileges that up grants to
PETSTORE_SERVING_ROLE.`,
		func(ctx context.Context, c config, m *postgres.Migrations) error {
			if dryRun {
				return p.migratePlan(ctx, m, asJSON)
			}
			return p.migrateUp(ctx, c, m)
		})
	up.Flags().BoolVar(&dryRun, "dry-run", false, "print the SQL and the locks of the pending migrations, and change nothing")
	up.Flags().BoolVar(&asJSON, "json", false, "with --dry-run, print a JSON array of objects with name, inTransaction, sql and locks")
	up.PreRunE = func(cmd *cobra.Command, _ []string) error {
		if asJSON && !dryRun {
			return wrongUsage(cmd, "--json needs --dry-run")
		}
		return nil
	}
}

// migratePlan prints the pending migrations with their locks, as SQL with comments or as
// JSON.
func (p *program) migratePlan(ctx context.Context, m *postgres.Migrations, asJSON bool) error {
	pending, err := m.Plan(ctx)
	if err != nil {
		return err
	}
	isLater, err := p.warnOfLater(ctx, m)
	if err != nil {
		return err
	}
	if asJSON {
		return p.printJSON(pending)
	}
	if len(pending) == 0 && !isLater {
		fmt.Fprintln(p.stdout, "-- the schema is current")
	}
	for _, one := range pending {
		how := "in a transaction, which holds its locks until its end"
		if !one.InTransaction {
			how = "without a transaction"
		}
		fmt.Fprintf(p.stdout, "-- %s, %s\n", one.Name, how)
		if len(one.Locks) == 0 {
			fmt.Fprintln(p.stdout, "-- locks no table that exists before it")
		}
		for _, lock := range one.Locks {
			rewrites := ""
			if lock.Rewrites {
				rewrites = ", rewrites the table"
			}
			fmt.Fprintf(p.stdout, "-- locks %s: %s, blocks %s%s\n", lock.Table, lock.Mode, lock.Blocks, rewrites)
		}
		fmt.Fprintf(p.stdout, "\n%s\n\n", one.SQL)
	}
	return nil
}

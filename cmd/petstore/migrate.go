package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"petstore/internal/postgres"
)

// migrateAction is the part of a command that uses the migrations.
type migrateAction func(context.Context, config, *postgres.Migrations) error

func (p *program) migrateCommand() *cobra.Command {
	migrate := group(&cobra.Command{
		Use:   "migrate",
		Short: "Migrate the database schema at deploy time",
		Long: `Migrate changes the schema of the database in DATABASE_URL. It is safe to run
concurrently: one process migrates while the others wait. If that URL leads through a
connection pooler, set PETSTORE_DIRECT_URL to one that does not.

If PETSTORE_SERVING_ROLE is set, up grants that role only the privileges that
serve, account, key and sandbox need. Run serve as that role, so that the process that clients
reach cannot change the schema.`,
		Example: "  DATABASE_URL=postgres://petstore@localhost/petstore petstore migrate up",
	})
	add := func(name, short, long string, action migrateAction) *cobra.Command {
		command := &cobra.Command{
			Use:     name,
			Short:   short,
			Long:    long,
			Example: "  petstore migrate " + name,
			Args:    noArguments,
			RunE: func(cmd *cobra.Command, _ []string) error {
				return p.withMigrations(cmd.Context(), action)
			},
		}
		migrate.AddCommand(command)
		return command
	}
	var yes bool
	p.addMigrateUp(add)
	down := add("down", "Revert the latest migration",
		`Down reverts the latest migration and deletes the data in the tables and columns
that it drops. It asks for confirmation. Scripts without a terminal need --yes.`,
		func(ctx context.Context, c config, m *postgres.Migrations) error {
			return p.migrateDown(ctx, c, m, yes)
		})
	down.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask for confirmation")
	down.Example = "  petstore migrate down --yes"
	add("distribute", "Distribute the tables over a Citus cluster",
		`Distribute spreads the tables over the workers of a Citus cluster, with their rows.
The tables accounts and api_keys are copied to every node. The other tables are
distributed by account, so that the rows of an account are on one worker. Each request
then uses one worker.

It needs the extension citus and at least one worker (see docs/scaling.md), and all
migrations. It runs in one transaction, which blocks reads and writes of the tables.
Running it again changes nothing. Later runs of up also distribute new tables.`,
		p.migrateDistribute)
	var asJSON bool
	status := add("status", "List the migrations and when each was applied", "",
		func(ctx context.Context, _ config, m *postgres.Migrations) error {
			return p.migrateStatus(ctx, m, asJSON)
		})
	status.Flags().BoolVar(&asJSON, "json", false, "print a JSON array of objects with name and appliedAt")
	add("version", "Print the version of the schema", "", p.migrateVersion)
	return migrate
}

func (p *program) withMigrations(ctx context.Context, action migrateAction) error {
	c, err := p.loadDatabaseConfig()
	if err != nil {
		return err
	}
	m, err := postgres.OpenMigrations(ctx, c.directURL())
	if err != nil {
		return c.direct().named(err)
	}
	defer m.Close()
	return action(ctx, c, m)
}

func (p *program) migrateUp(ctx context.Context, c config, m *postgres.Migrations) error {
	if c.ServingRole != "" {
		if err := m.CheckServing(ctx, c.ServingRole); err != nil {
			return err
		}
	}
	outliveReaders() // else the grant may be missing
	m.Progress = p.migrating
	applied, err := m.Up(ctx)
	p.status("")
	for _, migration := range applied {
		fmt.Fprintf(p.stdout, "applied %s (%s)\n", migration.Name, migration.Duration.Round(time.Millisecond))
	}
	isLater := false
	if err == nil && len(applied) == 0 {
		isLater, err = p.warnOfLater(ctx, m)
	}
	if err != nil {
		return err
	}
	if len(applied) == 0 && !isLater {
		fmt.Fprintln(p.stdout, "the schema is current")
	}
	return p.grantServing(ctx, c, m)
}

// warnOfLater says whether a later release has migrated the schema.
func (p *program) warnOfLater(ctx context.Context, m *postgres.Migrations) (isLater bool, err error) {
	later, err := m.Later(ctx)
	if err == nil && later > 0 {
		fmt.Fprintf(p.stderr, "the schema has later migrations, up to %d\n", later)
	}
	return later > 0, err
}

func (p *program) migrateDistribute(ctx context.Context, c config, m *postgres.Migrations) error {
	outliveReaders() // else the grant may be missing
	steps := 0
	err := m.Distribute(ctx, func(step string, took time.Duration) {
		steps++
		fmt.Fprintf(p.stdout, "%s (%s)\n", step, took.Round(time.Millisecond))
	})
	switch {
	case err != nil && steps > 0:
		return fmt.Errorf("nothing was changed: %w", err)
	case err != nil:
		return err
	case steps == 0:
		fmt.Fprintln(p.stdout, "all tables are distributed")
	}
	return p.grantServing(ctx, c, m)
}

// grantServing grants the serving role its privileges, if there is one.
func (p *program) grantServing(ctx context.Context, c config, m *postgres.Migrations) error {
	if c.ServingRole == "" {
		return nil
	}
	switch err := m.GrantServing(ctx, c.ServingRole); {
	case errors.Is(err, postgres.ErrLaterSchema):
		fmt.Fprintf(p.stdout, "granted %s nothing, because the schema is of a later release; run migrate up of that release\n", c.ServingRole)
		return nil
	case err != nil:
		return err
	}
	fmt.Fprintf(p.stdout, "granted %s the privileges of serve\n", c.ServingRole)
	return nil
}

func (p *program) migrateDown(ctx context.Context, c config, m *postgres.Migrations, yes bool) error {
	if !yes {
		if err := p.confirmDown(ctx, c, m); err != nil {
			return err
		}
	}
	reverted, err := m.Down(ctx)
	for _, migration := range reverted {
		fmt.Fprintf(p.stdout, "reverted %s (%s)\n", migration.Name, migration.Duration.Round(time.Millisecond))
	}
	if err == nil && len(reverted) == 0 {
		fmt.Fprintln(p.stdout, "there is nothing to revert")
	}
	return err
}

// confirmDown asks for confirmation to revert the latest migration, if there is one.
func (p *program) confirmDown(ctx context.Context, c config, m *postgres.Migrations) error {
	all, err := m.Status(ctx)
	if err != nil {
		return err
	}
	latest := ""
	for _, migration := range all {
		if migration.AppliedAt != nil {
			latest = migration.Name
		}
	}
	if latest == "" {
		return nil
	}
	return p.confirm(ctx, "migrate down reverts "+latest+" and deletes the data that it drops",
		fmt.Sprintf("Revert %s in %s and delete the data that it drops?", latest, postgres.Name(c.directURL())), "reverted")
}

func (p *program) migrateStatus(ctx context.Context, m *postgres.Migrations, asJSON bool) error {
	all, err := m.Status(ctx)
	if err == nil {
		_, err = p.warnOfLater(ctx, m)
	}
	if err != nil {
		return err
	}
	return printList(p, asJSON, "MIGRATION\tAPPLIED", all, func(one postgres.Migration) string {
		return one.Name + "\t" + formatTime(one.AppliedAt, "pending")
	})
}

func (p *program) migrateVersion(ctx context.Context, _ config, m *postgres.Migrations) error {
	version, err := m.Version(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintln(p.stdout, version)
	return nil
}

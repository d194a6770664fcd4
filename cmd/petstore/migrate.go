package main

import (
	"context"
	"errors"
	"fmt"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"

	"petstore/internal/postgres"
)

func (p *program) migrateCommand() *cobra.Command {
	migrate := &cobra.Command{
		Use:   "migrate",
		Short: "Move the database schema, at deploy time",
		Long: `Migrate moves the schema of the database that DATABASE_URL names. It is safe to
start from several places at once: one works while the others wait.

Where PETSTORE_SERVING_ROLE names a role of the database, up gives it what serve
and key need, on rows alone, and nothing else: serve as that role, and what
answers the network cannot change the schema.`,
		Example: "  DATABASE_URL=postgres://petstore@localhost/petstore petstore migrate up",
		Args:    usage(cobra.NoArgs),
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	add := func(name, short string, action func(context.Context, config, *postgres.Migrations) error) {
		migrate.AddCommand(&cobra.Command{
			Use:     name,
			Short:   short,
			Example: "  petstore migrate " + name,
			Args:    usage(cobra.NoArgs),
			RunE: func(cmd *cobra.Command, _ []string) error {
				return p.withMigrations(cmd.Context(), action)
			},
		})
	}
	add("up", "Apply every pending migration", p.migrateUp)
	add("down", "Take back the latest migration", p.migrateDown)
	add("status", "List the migrations and when each was applied", p.migrateStatus)
	add("version", "Print the version of the schema", p.migrateVersion)
	return migrate
}

func (p *program) withMigrations(ctx context.Context, action func(context.Context, config, *postgres.Migrations) error) (err error) {
	c, err := p.loadConfig(true)
	if err != nil {
		return err
	}
	m, err := postgres.OpenMigrations(ctx, c.DatabaseURL)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, m.Close()) }()
	return action(ctx, c, m)
}

func (p *program) migrateUp(ctx context.Context, c config, m *postgres.Migrations) error {
	applied, err := m.Up(ctx)
	for _, migration := range applied {
		fmt.Fprintf(p.stdout, "applied %s (%s)\n", migration.Name, migration.Duration.Round(time.Millisecond))
	}
	if err == nil && len(applied) == 0 {
		fmt.Fprintln(p.stdout, "the schema is current")
	}
	if err != nil || c.ServingRole == "" {
		return err
	}
	if err := m.GrantServing(ctx, c.ServingRole); err != nil {
		return err
	}
	fmt.Fprintf(p.stdout, "%s may serve\n", c.ServingRole)
	return nil
}

func (p *program) migrateDown(ctx context.Context, _ config, m *postgres.Migrations) error {
	reverted, err := m.Down(ctx)
	for _, migration := range reverted {
		fmt.Fprintf(p.stdout, "took back %s (%s)\n", migration.Name, migration.Duration.Round(time.Millisecond))
	}
	if err == nil && len(reverted) == 0 {
		fmt.Fprintln(p.stdout, "there is nothing to take back")
	}
	return err
}

func (p *program) migrateStatus(ctx context.Context, _ config, m *postgres.Migrations) error {
	all, err := m.Status(ctx)
	if err != nil {
		return err
	}
	table := tabwriter.NewWriter(p.stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "MIGRATION\tAPPLIED")
	for _, migration := range all {
		applied := "pending"
		if !migration.AppliedAt.IsZero() {
			applied = migration.AppliedAt.UTC().Format(time.RFC3339)
		}
		fmt.Fprintf(table, "%s\t%s\n", migration.Name, applied)
	}
	return table.Flush()
}

func (p *program) migrateVersion(ctx context.Context, _ config, m *postgres.Migrations) error {
	version, err := m.Version(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintln(p.stdout, version)
	return nil
}

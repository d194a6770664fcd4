package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"petstore/db"
	"petstore/internal/account"
	"petstore/internal/postgres"
	"petstore/internal/seed"
)

const defaultSeedPets = 1000

func (p *program) seedCommand() *cobra.Command {
	name, pets := devAccount, defaultSeedPets
	command := &cobra.Command{
		Use:   "seed",
		Short: "Fill the empty store of an account with sample data",
		Long: `Seed creates categories, pets, inventory and orders in the store of an account, and
the account if it does not exist. The data is the same each time.`,
		Example: "  petstore seed --account acme --pets 200000",
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := p.loadDatabaseConfig()
			if err != nil {
				return err
			}
			// Loading many pets takes longer than the role may allow behind a pooler.
			return c.direct().named(withDatabaseOf(cmd.Context(), c.directURL(), c.DBMaxConns, func(ctx context.Context, database *postgres.DB) error {
				if err := loadSample(ctx, database, name, pets, p.seeding); err != nil {
					p.status("")
					return err
				}
				fmt.Fprintf(p.stdout, "wrote %d pets with their inventory and orders\n", pets)
				return nil
			}))
		},
	}
	addTextFlag(command, &name, "account", nameRule, "the name of the account; created if it does not exist")
	addNumberFlag(command, &pets, "pets", numberRange{1, seed.MaxPets}, fmt.Sprintf("number of pets, at most %d", seed.MaxPets))
	return command
}

// loadSample fills the store of an account, and creates the account if it does not
// exist. The error is [seed.ErrNotEmpty] if the store has data.
func loadSample(ctx context.Context, database *postgres.DB, name string, pets int, progress func(done, total int)) error {
	if err := database.MaintainEvents(ctx); err != nil {
		return err
	}
	var id int64
	err := transact(ctx, database, func(ctx context.Context, queries *db.Queries) error {
		owner, err := account.Ensure(ctx, queries, name)
		id = owner.ID
		return err
	})
	if err != nil {
		return err
	}
	return seed.Load(ctx, database.Pool(), id, pets, progress)
}

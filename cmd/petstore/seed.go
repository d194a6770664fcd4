package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"petstore/internal/postgres"
	"petstore/internal/seed"
)

const defaultSeedPets = 1000

func (p *program) seedCommand() *cobra.Command {
	var pets int
	command := &cobra.Command{
		Use:     "seed",
		Short:   "Fill an empty database with sample data",
		Long:    `Seed creates categories, pets, inventory and orders. The data is the same each time.`,
		Example: "  petstore seed --pets 200000",
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if pets < 1 || pets > seed.MaxPets {
				return wrongUsage(cmd, "--pets must be from 1 to %d, but is %d", seed.MaxPets, pets)
			}
			return p.withDatabase(cmd.Context(), func(ctx context.Context, database *postgres.DB) error {
				if err := seed.Load(ctx, database.Pool(), pets, p.progress()); err != nil {
					return err
				}
				fmt.Fprintf(p.stdout, "wrote %d pets with their inventory and orders\n", pets)
				return nil
			})
		},
	}
	command.Flags().IntVar(&pets, "pets", defaultSeedPets, "number of pets")
	return command
}

// progress prints the number of rows on stderr if it is a terminal, and clears the line
// at the end.
func (p *program) progress() func(done, total int) {
	if !isTerminal(p.stderr) {
		return func(int, int) {}
	}
	const toStart, clearLine = "\r", "\r\x1b[K"
	return func(done, total int) {
		fmt.Fprintf(p.stderr, "%sseeding: %d of %d rows", toStart, done, total)
		if done == total {
			fmt.Fprint(p.stderr, clearLine)
		}
	}
}

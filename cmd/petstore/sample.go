package main

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/spf13/cobra"

	"petstore/db"
	"petstore/internal/account"
	"petstore/internal/postgres"
)

const sampleNameRule = "must have 1 to 50 lowercase letters, digits and hyphens, and must not begin with a hyphen"

func (p *program) sampleCommand() *cobra.Command {
	return group(&cobra.Command{
		Use:   "sample",
		Short: "Save, list and delete the samples that sandboxes start as",
		Long: `A sample is a store with a name. "petstore sandbox create --sample NAME" makes a copy
of it, with the same ids. Every account has the samples shop and empty.`,
		Example: "  petstore sample save black-friday --from sbx_1002",
	}, p.sampleSaveCommand(), p.sampleListCommand(), p.sampleDeleteCommand())
}

func (p *program) sampleSaveCommand() *cobra.Command {
	var from string
	command := &cobra.Command{
		Use:   "save NAME",
		Short: "Save the store of a sandbox as a sample",
		Long: `Save copies the categories, pets, inventory, orders and messages of a sandbox to a
sample of the account that the sandbox belongs to. The sandbox goes on as before.`,
		Example: "  petstore sample save black-friday --from sbx_1002",
		Args:    oneSample,
		RunE: func(cmd *cobra.Command, args []string) error {
			if _, ok := account.ParseSandboxID(from); !ok {
				return wrongUsage(cmd, "--from must be the id of a sandbox, such as sbx_1002, but is %q", from)
			}
			return p.withDatabase(cmd.Context(), func(ctx context.Context, database *postgres.DB) error {
				if err := saveSample(ctx, database, args[0], from); err != nil {
					return err
				}
				fmt.Fprintf(p.stdout, "saved sandbox %s as %s\n", from, args[0])
				return nil
			})
		},
	}
	command.Flags().StringVar(&from, "from", "", "the id of the sandbox (required)")
	return command
}

// saveSample saves the store of the sandbox with an id.
func saveSample(ctx context.Context, database *postgres.DB, name, from string) error {
	return transact(ctx, database, func(ctx context.Context, queries *db.Queries) error {
		sandbox, err := findSandbox(ctx, queries, from)
		if err != nil {
			return err
		}
		owner, err := queries.AccountGet(ctx, sandbox.ID)
		if err != nil {
			return err
		}
		_, err = account.SaveSample(ctx, queries, account.NewSample{ParentID: *owner.ParentID, Name: name, SandboxID: sandbox.ID})
		switch {
		case errors.Is(err, account.ErrSampleExists):
			return fmt.Errorf("there is already a sample %s; choose another name, or delete the sample first", name)
		case errors.Is(err, account.ErrTooManySamples):
			return fmt.Errorf("the account has %d samples, which is the maximum; delete one first", account.MaxSamples)
		case errors.Is(err, account.ErrNoSandbox), errors.Is(err, account.ErrClosed): // deleted meanwhile
			return noSandbox(from)
		}
		return err
	})
}

func (p *program) sampleListCommand() *cobra.Command {
	return listCommand(p, listing[account.Sample]{
		short:     "List the samples of an account",
		example:   "  petstore sample list --account demo",
		resources: "samples",
		fields:    "name, builtIn and createdAt",
		header:    "NAME\tCREATED",
		row:       func(one account.Sample) string { return one.Name + "\t" + formatTime(one.CreatedAt, "built in") },
		read:      account.Samples,
	})
}

func (p *program) sampleDeleteCommand() *cobra.Command {
	var owner string
	var yes bool
	command := &cobra.Command{
		Use:   "delete NAME",
		Short: "Delete a sample of an account",
		Long: `Delete deletes a sample. Its name is free at once. Sandboxes that have started as the
sample still return to it when they are reset. A running server deletes the data when
the last of them has ended. It asks for confirmation. Scripts without a terminal need
--yes.`,
		Example: "  petstore sample delete black-friday --account demo --yes",
		Args:    oneSample,
		RunE: func(cmd *cobra.Command, args []string) error {
			if owner == "" {
				return wrongUsage(cmd, "--account is required: name the account of the sample")
			}
			if account.IsBuiltIn(args[0]) {
				return wrongUsage(cmd, "the sample %s is built in, so it cannot be deleted", args[0])
			}
			return p.withDatabase(cmd.Context(), func(ctx context.Context, database *postgres.DB) error {
				queries := db.New(database)
				of, err := findAccount(ctx, queries, owner)
				if err != nil {
					return err
				}
				sample, err := queries.SampleGet(ctx, db.SampleGetParams{ParentID: &of.ID, Name: args[0]})
				if errors.Is(err, pgx.ErrNoRows) {
					return noSample(args[0], owner)
				}
				if err != nil {
					return err
				}
				return p.remove(ctx, cmd, database, removal{
					yes: yes, id: sample.ID, what: fmt.Sprintf("the sample %s of the account %q", args[0], owner),
					done: "sample " + args[0], gone: noSample(args[0], owner),
				})
			})
		},
	}
	command.Flags().StringVar(&owner, "account", "", "the name of the account (required)")
	command.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask for confirmation")
	return command
}

// oneSample validates that a command has one argument, which is the name of a sample.
func oneSample(cmd *cobra.Command, args []string) error {
	if err := oneArgument("the name of one sample")(cmd, args); err != nil {
		return err
	}
	if !account.IsSampleName(args[0]) {
		return wrongUsage(cmd, "the name of a sample %s, but is %q", sampleNameRule, args[0])
	}
	return nil
}

func noSample(name, owner string) error {
	return fmt.Errorf("the account %[2]q has no sample %[1]s; petstore sample list --account %[2]s shows its samples", name, owner)
}

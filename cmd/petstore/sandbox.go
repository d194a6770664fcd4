package main

import (
	"context"
	"errors"
	"fmt"
	"time"

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
		Short: "Create a sandbox",
		Long: `A sandbox is a temporary account for a test run or a demo. Its store is its own and
starts as a copy of a sample. It shares the limits of the account that it belongs to. When
it expires, its API keys stop and a running server deletes its data. With an admin key,
petstore api lists, resets and deletes sandboxes.`,
		Example: "  petstore sandbox create --account demo",
	}, p.sandboxCreateCommand())
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

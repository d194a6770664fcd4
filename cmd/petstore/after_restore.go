package main

import (
	"context"
	"fmt"

	"github.com/spf13/cobra"

	"petstore/internal/event"
	"petstore/internal/postgres"
)

// restoreSkip is by how much ids and numbers of events move ahead after a restore: more than a
// store can have written since its backup.
const restoreSkip = 1_000_000_000

func (p *program) afterRestoreCommand() *cobra.Command {
	var nothingLost bool
	command := &cobra.Command{
		Use:   "after-restore",
		Short: "Make a restored database refuse what clients hold from the time after its backup",
		Long: `After-restore prepares a database that you have restored to an earlier point. Run it
once, as the role that migrates, before you start serve. It refuses to run while serve or
worker is connected. In one transaction, it

- replaces the key of cursors and consistency tokens, so that the old ones are errors,
- moves ids and the numbers of events ahead by 1,000,000,000, so that none comes
  again, except the ids of resources in sandboxes,
- empties the records of sandboxes,
- adds the event store.reset to each feed, so that clients read their lists again.

With --nothing-lost, it only replaces the key: after a move to another server that has
everything. API keys that were revoked after the backup work again, so revoke them.`,
		Example: "  petstore after-restore",
		Args:    noArguments,
		RunE: func(cmd *cobra.Command, _ []string) error {
			skip := int64(restoreSkip)
			if nothingLost {
				skip = 0
			}
			return p.withMigrations(cmd.Context(), func(ctx context.Context, _ config, m *postgres.Migrations) error {
				return p.afterRestore(ctx, m, skip)
			})
		},
	}
	command.Flags().BoolVar(&nothingLost, "nothing-lost", false, "only replace the key of cursors and consistency tokens")
	return command
}

func (p *program) afterRestore(ctx context.Context, m *postgres.Migrations, skip int64) error {
	reset := event.Reset()
	feeds, err := m.AfterRestore(ctx, skip, postgres.FeedEvent{Type: string(reset.Type), Subject: reset.Subject, Nonce: event.NewNonce()})
	if err != nil {
		return err
	}
	fmt.Fprintln(p.stdout, "replaced the key of cursors and consistency tokens")
	if skip > 0 {
		fmt.Fprintf(p.stdout, "moved ids and the numbers of events ahead by %d, and added store.reset to %d feeds\n", skip, feeds)
	}
	return nil
}

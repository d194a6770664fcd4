package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"
)

// connectedError means that processes are connected that know what AfterRestore replaces.
type connectedError int

func (e connectedError) Error() string {
	return fmt.Sprintf("%d connections of serve or worker are open; stop every process of Petstore, restart PgBouncer if you have it, and run this again before you start them", int(e))
}

// FeedEvent is the event that [Migrations.AfterRestore] adds to the feed of each account.
type FeedEvent struct {
	Type, Subject string
	Nonce         int64
}

// AfterRestore makes a database that was restored to an earlier point refuse what clients hold
// from the time after it. It replaces the key of cursors and consistency tokens. Unless skip is 0,
// it moves the ids and the numbers of events ahead by skip, so that none comes again. It then
// empties the records of sandboxes, and adds an event to each feed. It returns the number of
// feeds. Running it again does it again. The role must own the tables.
func (m *Migrations) AfterRestore(ctx context.Context, skip int64, added FeedEvent) (feeds int, err error) {
	err = pgx.BeginFunc(ctx, m.pool, func(tx pgx.Tx) (err error) {
		feeds, err = afterRestore(ctx, tx, skip, added)
		return err
	})
	if sqlState(err) == undefinedTable {
		err = errors.New(SchemaBehind.Problem())
	}
	return feeds, err
}

func afterRestore(ctx context.Context, tx pgx.Tx, skip int64, added FeedEvent) (feeds int, err error) {
	// A process that starts now waits for the new key, and has read no key before.
	if _, err := tx.Exec(ctx, "LOCK TABLE signing_keys IN ACCESS EXCLUSIVE MODE"); err != nil {
		return 0, err
	}
	var connected connectedError
	err = tx.QueryRow(ctx, `
		SELECT count(*)
		FROM pg_stat_activity
		WHERE datname = current_database()
		  AND application_name LIKE 'petstore%'
		  AND application_name <> 'petstore migrate'`).Scan(&connected)
	switch {
	case err != nil:
		return 0, err
	case connected > 0:
		return 0, connected
	}
	const newKeys = "UPDATE signing_keys SET secret = sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid()))"
	if _, err := tx.Exec(ctx, newKeys); err != nil || skip == 0 {
		return 0, err
	}
	for _, statement := range []string{
		`SELECT setval(sequence, nextval(sequence) + $1)
		FROM (
			SELECT pg_get_serial_sequence(quote_ident(table_name), column_name)::regclass AS sequence
			FROM information_schema.columns
			WHERE table_schema = current_schema() AND is_identity = 'YES' AND table_name <> 'goose_db_version'
		) AS ids`,
		"UPDATE account_state SET last_sequence = last_sequence + $1",
		// A sandbox without a log may have got one after the backup.
		`INSERT INTO exchange_logs AS log (account_id, first_number, last_number)
		SELECT account_state.account_id, $1::bigint + 1, $1::bigint
		FROM account_state
		JOIN accounts ON accounts.id = account_state.account_id
		WHERE accounts.kind = 'sandbox'
		ON CONFLICT (account_id) DO UPDATE
		SET first_number = log.last_number + $1 + 1, last_number = log.last_number + $1, dropped = 0`,
	} {
		if _, err := tx.Exec(ctx, statement, skip); err != nil {
			return 0, err
		}
	}
	// The backup may be so old that events has no partition for today.
	for _, statement := range []string{"TRUNCATE exchanges", "SELECT maintain_events()"} {
		if _, err := tx.Exec(ctx, statement); err != nil {
			return 0, err
		}
	}
	return addToFeeds(ctx, tx, added)
}

// addToFeeds adds an event to each feed that clients can read, and returns their number.
func addToFeeds(ctx context.Context, tx pgx.Tx, added FeedEvent) (feeds int, err error) {
	rows, _ := tx.Query(ctx, `
		SELECT account_state.account_id
		FROM account_state
		JOIN accounts ON accounts.id = account_state.account_id
		WHERE NOT account_state.closed
		  AND accounts.kind <> 'sample'
		ORDER BY account_state.account_id`)
	accounts, err := pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil {
		return 0, err
	}
	for _, account := range accounts { // one statement each, which Citus runs on the shard of the account
		if _, err := tx.Exec(ctx, "SELECT append_events($1, $2, ARRAY[$3], ARRAY[$4], ARRAY['{}'], 0, 0, 0, 0)", account, added.Nonce, added.Type, added.Subject); err != nil {
			return 0, err
		}
	}
	return len(accounts), nil
}

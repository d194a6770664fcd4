package account

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"petstore/db"
	"petstore/internal/postgres"
	"petstore/internal/sleep"
)

const (
	// sweepBatch is the maximum number of rows that one transaction deletes.
	sweepBatch = 1000
	// sweepTurn is the time after which an account with more rows lets the others have a turn.
	sweepTurn = 5 * time.Second
	// sweepErrors is the maximum number of errors that a sweep returns.
	sweepErrors = 10
)

// ErrBusy means that another process is deleting rows of the account, or has deleted it.
var ErrBusy = errors.New("account: another process deletes rows of the account")

// Sweep deletes the data of accounts that were deleted, and of sandboxes that expired, at
// least a minute ago. It ends when there is none or ctx ends. It deletes at most 1000
// rows in a transaction and pauses as long as that took, so that other accounts notice
// little. The payers take turns, and so do the accounts of each. Several processes may sweep at the
// same time. One of them at a time deletes rows of an account, and the others go on with other
// accounts. An error with one account does not keep the others. Sweep returns at most 10 errors.
func Sweep(ctx context.Context, database *postgres.DB) error {
	for {
		swept, err := sweepOnce(ctx, database, sweepTurn)
		if err != nil || swept == 0 {
			return err
		}
	}
}

// sweepOnce tries to sweep every ended account once, each for a turn, and returns how many it
// swept. In each round, it tries one of each payer. So the many sandboxes of one do not delay those of
// another, which have ended meanwhile.
func sweepOnce(ctx context.Context, database *postgres.DB, turn time.Duration) (swept int, err error) {
	var failures []error
	tried := []int64{} // not nil, which is NULL
	for {
		ids, err := db.New(database).AccountsToSweep(ctx, tried)
		if err != nil {
			return swept, errors.Join(append(failures, fmt.Errorf("account: looking for accounts to delete: %w", err))...)
		}
		if len(ids) == 0 {
			return swept, errors.Join(failures...)
		}
		for _, id := range ids {
			tried = append(tried, id)
			switch err := sweepAccount(ctx, database, id, turn); {
			case err == nil:
				swept++
			case !errors.Is(err, ErrBusy) && len(failures) < sweepErrors:
				failures = append(failures, fmt.Errorf("account: deleting the data of account %d: %w", id, err))
			}
			if ctx.Err() != nil {
				return swept, errors.Join(failures...)
			}
		}
	}
}

// sweepAccount deletes an account with its data, or what it can in a turn. The error is [ErrBusy] or
// a database error.
func sweepAccount(ctx context.Context, database *postgres.DB, id int64, turn time.Duration) error {
	turnBegan := time.Now()
	if _, err := SweepStep(ctx, database, id, func(ctx context.Context, queries *db.Queries) (int64, error) {
		return 0, closeStore(ctx, queries, id) // an expired sandbox is not closed yet
	}); err != nil {
		return err
	}
	for i := range sweptTables(nil) {
		for rows := int64(sweepBatch); rows == sweepBatch; {
			began := time.Now()
			var err error
			if rows, err = SweepStep(ctx, database, id, func(ctx context.Context, queries *db.Queries) (int64, error) {
				return sweptTables(queries)[i](ctx, id, sweepBatch)
			}); err != nil {
				return err
			}
			if !sleep.For(ctx, time.Since(began)) {
				return ctx.Err()
			}
			if rows == sweepBatch && time.Since(turnBegan) >= turn {
				return nil
			}
		}
	}
	_, err := SweepStep(ctx, database, id, func(ctx context.Context, queries *db.Queries) (int64, error) {
		for _, remove := range []func(context.Context, int64) (int64, error){queries.StoreDeleteFaults, queries.StoreDeleteExchangeLog, queries.StoreDeleteState, queries.AccountForget} {
			if _, err := remove(ctx, id); err != nil {
				return 0, err
			}
		}
		return 0, nil
	})
	return err
}

// sweptTables returns the deletions of a store, its stored responses, its record, its webhooks and
// the keys of its account, in an order like storeTables.
func sweptTables(queries *db.Queries) []deletion {
	return append(storeTables(queries),
		deletes(queries.StoreDeleteIdempotencyKeys), deletes(queries.StoreDeleteExchanges), deletes(queries.StoreDeleteEvents),
		deletes(queries.StoreDeleteWebhookDeliveries), deletes(queries.StoreDeleteWebhooks), deletes(queries.StoreDeleteKeyUses),
		deletes(queries.APIKeyDeleteSome),
	)
}

// SweepStep runs a step of the sweep of an account in a transaction, and returns the
// number of rows that it deleted. The error is [ErrBusy], the error of the step, or a
// database error.
func SweepStep(ctx context.Context, database *postgres.DB, id int64, step func(context.Context, *db.Queries) (int64, error)) (int64, error) {
	return postgres.Transact(ctx, database, func(ctx context.Context, tx pgx.Tx) (int64, error) {
		queries := db.New(tx)
		locked, err := queries.StoreTryLockSweep(ctx, id)
		if errors.Is(err, pgx.ErrNoRows) || err == nil && !locked {
			return 0, ErrBusy
		}
		if err != nil {
			return 0, err
		}
		return step(ctx, queries)
	})
}

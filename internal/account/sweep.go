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
	// sweepPass is the time after which a pass ends, even if accounts end as fast as it deletes them.
	// Then its errors are known, and the next one tries again what it has skipped.
	sweepPass = time.Minute
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
		turns, err := sweepOnce(ctx, database, sweepTurn)
		if err != nil || turns == 0 {
			return err
		}
	}
}

// sweepOnce is one pass over the ended accounts, and returns how many turns it gave. In each round, an
// account of each payer gets a turn. So a payer with many sandboxes does not delay the others.
// An account that fails or is busy gets none in the rest of the pass.
func sweepOnce(ctx context.Context, database *postgres.DB, turn time.Duration) (turns int, err error) {
	began, failures := time.Now(), []error(nil)
	params := db.AccountsToSweepParams{Skipped: []int64{}, HadTurns: []int64{}} // not nil, which is NULL
	for {
		ids, err := db.New(database).AccountsToSweep(ctx, params)
		if err != nil {
			return turns, errors.Join(append(failures, fmt.Errorf("account: looking for accounts to delete: %w", err))...)
		}
		for _, id := range ids {
			err := sweepAccount(ctx, database, id, turn)
			switch {
			case err == nil:
				turns++
				params.HadTurns = append(params.HadTurns, id)
			case !errors.Is(err, ErrBusy) && len(failures) < sweepErrors:
				failures = append(failures, fmt.Errorf("account: deleting the data of account %d: %w", id, err))
			}
			if err != nil {
				params.Skipped = append(params.Skipped, id)
			}
			if ctx.Err() != nil {
				return turns, errors.Join(failures...)
			}
		}
		if len(ids) == 0 || time.Since(began) >= sweepPass {
			return turns, errors.Join(failures...)
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
		deletes(queries.StoreDeleteMessages), deletes(queries.StoreDeleteIdempotencyKeys), deletes(queries.StoreDeleteExchanges),
		deletes(queries.StoreDeleteEvents), deletes(queries.StoreDeleteWebhookDeliveries), deletes(queries.StoreDeleteWebhooks), deletes(queries.StoreDeleteKeyUses),
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

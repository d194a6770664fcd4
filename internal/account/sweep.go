package account

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"petstore/db"
	"petstore/internal/postgres"
)

const (
	// sweepAccounts is the maximum number of accounts of one sweep.
	sweepAccounts = 100
	// sweepBatch is the maximum number of rows that one transaction deletes.
	sweepBatch = 1000
)

// Sweep deletes the data of deleted accounts and of expired sandboxes, until there is
// none or ctx ends. It deletes at most 1000 rows in a transaction and pauses as long as
// that took, so that other accounts notice little. Several processes may sweep at the
// same time: each account is swept by one.
func Sweep(ctx context.Context, database *postgres.DB) error {
	ids, err := db.New(database).AccountsToSweep(ctx, sweepAccounts)
	if err != nil {
		return fmt.Errorf("account: looking for accounts to delete: %w", err)
	}
	for _, id := range ids {
		if err := sweepAccount(ctx, database, id); err != nil {
			return fmt.Errorf("account: deleting the data of account %d: %w", id, err)
		}
	}
	return nil
}

// sweepAccount deletes an account with its data, unless another process does.
func sweepAccount(ctx context.Context, database *postgres.DB, id int64) error {
	if _, err := sweepStep(ctx, database, id, func(ctx context.Context, queries *db.Queries) (int64, error) {
		return 0, closeStore(ctx, queries, id) // an expired sandbox is not closed yet
	}); err != nil {
		return err
	}
	for i := range storeTables(nil) {
		for more := true; more; {
			began := time.Now()
			rows, err := sweepStep(ctx, database, id, func(ctx context.Context, queries *db.Queries) (int64, error) {
				return storeTables(queries)[i](ctx, id, sweepBatch)
			})
			if err != nil {
				return err
			}
			if more = rows == sweepBatch; more {
				if err := pause(ctx, time.Since(began)); err != nil {
					return err
				}
			}
		}
	}
	_, err := sweepStep(ctx, database, id, func(ctx context.Context, queries *db.Queries) (int64, error) {
		for _, remove := range []func(context.Context, int64) (int64, error){
			queries.StoreDeleteFaults, queries.StoreDeleteKeyUses, queries.StoreDeleteState, queries.APIKeyDeleteAll, queries.AccountForget,
		} {
			if _, err := remove(ctx, id); err != nil {
				return 0, err
			}
		}
		return 0, nil
	})
	return err
}

// sweepStep runs a step of the sweep of an account in a transaction, and returns the
// number of rows that it deleted. It does nothing if another process sweeps the
// account or has deleted it.
func sweepStep(ctx context.Context, database *postgres.DB, id int64, step func(context.Context, *db.Queries) (int64, error)) (int64, error) {
	return postgres.Transact(ctx, database, func(ctx context.Context, tx pgx.Tx) (int64, error) {
		queries := db.New(tx)
		locked, err := queries.StoreTryLockSweep(ctx, id)
		if errors.Is(err, pgx.ErrNoRows) || err == nil && !locked {
			return 0, nil
		}
		if err != nil {
			return 0, err
		}
		return step(ctx, queries)
	})
}

// pause waits, or returns the error of ctx.
func pause(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Package upkeep runs the periodic work on the tables: it deletes what has expired and
// creates partitions. Every process with the API does it, and the tasks agree among
// themselves who does what.
package upkeep

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"

	"petstore/db"
	"petstore/internal/account"
	"petstore/internal/exchange"
	"petstore/internal/postgres"
	"petstore/internal/sleep"
	"petstore/internal/webhook"
)

// Task is work that is due regularly.
type Task struct {
	Name string // in the log
	// Every is the time from the end of a run to the next one, and Again the time after a run
	// that has failed; zero: Every.
	Every, Again time.Duration
	Run          func(context.Context) error
}

// longest bounds each transaction of a task, which has no other deadline.
const longest = time.Minute

// Tasks returns all tasks on a database.
func Tasks(database *postgres.DB, vault *webhook.Vault) []Task {
	database = database.Bounded(longest)
	return []Task{
		{
			Name: "sweep idempotency keys", Every: 10 * time.Minute,
			Run: func(ctx context.Context) error { return SweepIdempotencyKeys(ctx, database) },
		},
		{
			Name: "sweep revoked keys", Every: 24 * time.Hour, Again: time.Hour,
			Run: func(ctx context.Context) error { return SweepAPIKeys(ctx, database) },
		},
		{
			Name: "sweep accounts", Every: time.Minute,
			Run: func(ctx context.Context) error { return account.Sweep(ctx, database) },
		},
		{
			Name: "sweep webhooks", Every: 10 * time.Minute,
			Run: func(ctx context.Context) error { return webhook.Sweep(ctx, database, vault) },
		},
		{
			Name: "sweep recorded requests", Every: 10 * time.Minute,
			Run: func(ctx context.Context) error { return exchange.Expire(ctx, database) },
		},
		{
			Name: "maintain partitions of events", Every: time.Hour, Again: time.Minute,
			Run: func(ctx context.Context) error { return maintainEvents(ctx, database) },
		},
	}
}

// Run runs the tasks now, one shortly after the other, and each whenever it is due, until the context ends.
func Run(ctx context.Context, database *postgres.DB, log *slog.Logger, tasks []Task) {
	database = database.Bounded(longest)
	var running sync.WaitGroup
	for i, t := range tasks {
		running.Go(func() {
			sleep.Stagger(ctx, i)
			for ctx.Err() == nil {
				sleep.For(ctx, t.once(ctx, database, log))
			}
		})
	}
	running.Wait()
}

// once runs a task, and returns the time after which it is due again. It logs errors, unless
// the schema does not fit, because serve already warns about that.
func (t Task) once(ctx context.Context, database *postgres.DB, log *slog.Logger) time.Duration {
	err := t.Run(postgres.ForAllAccounts(ctx))
	if err == nil {
		return t.Every
	}
	if ctx.Err() == nil && schemaFits(ctx, database) {
		log.LogAttrs(ctx, slog.LevelWarn, "a periodic task failed", slog.String("task", t.Name), slog.Any("error", err))
	}
	return cmp.Or(t.Again, t.Every)
}

// schemaFits reports whether the schema of the database fits this program, as far as the
// database says.
func schemaFits(ctx context.Context, database *postgres.DB) bool {
	fit, err := database.SchemaFit(ctx)
	return err != nil || fit == postgres.SchemaFits
}

// keysPerBatch is the maximum number of stored responses, or of API keys, that one transaction deletes.
const keysPerBatch = 1000

// SweepIdempotencyKeys deletes the stored responses that have expired, in batches, unless
// another process does. The error comes from the database.
func SweepIdempotencyKeys(ctx context.Context, database *postgres.DB) error {
	for oldest := (time.Time{}); ; {
		swept, err := postgres.Transact(ctx, database, func(ctx context.Context, tx pgx.Tx) ([]time.Time, error) {
			queries := db.New(tx)
			locked, err := queries.IdempotencyKeysTryLockSweep(ctx)
			if err != nil || !locked { // another process sweeps
				return nil, err
			}
			return queries.IdempotencyKeySweep(ctx, db.IdempotencyKeySweepParams{Oldest: oldest, BatchSize: keysPerBatch})
		})
		if err != nil || len(swept) < keysPerBatch {
			return err
		}
		oldest = slices.MaxFunc(swept, time.Time.Compare)
	}
}

// SweepAPIKeys deletes the keys that were revoked more than 30 days ago, in batches. It leaves out
// accounts of which another process deletes rows, and goes on after an account that fails. It returns
// the first error of the database.
func SweepAPIKeys(ctx context.Context, database *postgres.DB) (failed error) {
	for last := int64(0); ; {
		keys, err := db.New(database).APIKeysToForget(ctx, db.APIKeysToForgetParams{AfterID: last, PageSize: keysPerBatch})
		if err != nil {
			return cmp.Or(failed, err)
		}
		ids := map[int64][]int64{} // of keys, by account
		for _, key := range keys {
			last = key.ID
			ids[key.AccountID] = append(ids[key.AccountID], key.ID)
		}
		for id, revoked := range ids {
			_, err := account.SweepStep(ctx, database, id, func(ctx context.Context, queries *db.Queries) (int64, error) {
				if err := queries.APIKeyUsesForget(ctx, db.APIKeyUsesForgetParams{AccountID: id, Ids: revoked}); err != nil {
					return 0, err
				}
				return queries.APIKeysForget(ctx, db.APIKeysForgetParams{AccountID: id, Ids: revoked})
			})
			if !errors.Is(err, account.ErrBusy) {
				failed = cmp.Or(failed, err)
			}
		}
		if len(keys) < keysPerBatch {
			return failed
		}
	}
}

// eventsAhead is the time from now for which a run must leave a partition of events.
const eventsAhead = 7 * 24 * time.Hour

// maintainEvents creates the partitions of the next weeks for events, and drops the
// partitions of events older than 30 days. The error says why events will have no partition
// in a week.
func maintainEvents(ctx context.Context, database *postgres.DB) error {
	if err := database.MaintainEvents(ctx); err != nil {
		return err
	}
	fit, err := database.EventsFit(ctx, eventsAhead)
	if err == nil && !fit {
		err = postgres.ErrNoPartition
	}
	return err
}

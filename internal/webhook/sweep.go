package webhook

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"petstore/db"
	"petstore/internal/account"
	"petstore/internal/postgres"
	"petstore/internal/sleep"
)

// Retention is the time for which deliveries are kept.
const Retention = 30 * 24 * time.Hour

const (
	sweepPage  = 1000
	sweepBatch = 1000 // rows per transaction

	// afterAllDeliveries is greater than the id of every delivery.
	afterAllDeliveries = deliveryIDPrefix + "g"
)

// endOfTime is after the creation of every delivery.
var endOfTime = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)

// statuses are the statuses of deliveries. An index has the deliveries of each.
var statuses = []string{"pending", "delivered", "failed"}

// Sweep deletes the deliveries that are older than [Retention], and the deleted webhooks of
// which the worker has stopped. It seals secrets with the first key of the vault, if they
// are not, and deletes those whose grace is over. It works in small transactions, and in
// none for a webhook that has nothing to do. After each, it pauses for as long as that took. The clock of the
// database decides what is old. An error keeps no other webhook from it. Several processes may
// sweep at once. It returns the first error of the database, and one that tells which secrets do not open.
func Sweep(ctx context.Context, database *postgres.DB, vault *Vault) error {
	now, err := db.New(database).Clock(ctx)
	if err != nil {
		return fmt.Errorf("webhook: sweeping: %w", err)
	}
	before := now.Add(-Retention)
	page := db.WebhooksToSweepParams{PageSize: sweepPage, BeforeID: FirstDeliveryID(before), Before: before}
	var lost []error // of secrets that do not open
	var failed error
	for {
		rows, err := db.New(database).WebhooksToSweep(ctx, page)
		if err != nil {
			return cmp.Or(failed, fmt.Errorf("webhook: sweeping: %w", err))
		}
		for _, row := range rows {
			if row.IsGone || row.HasOld {
				if err := sweepOne(ctx, database, row, before); err != nil {
					failed = cmp.Or(failed, fmt.Errorf("webhook: sweeping the deliveries of %s: %w", row.ID, err))
				}
			}
			if !row.IsGone {
				if err := vault.reseal(ctx, db.New(database), row, &lost); err != nil {
					failed = cmp.Or(failed, fmt.Errorf("webhook: sealing the secret of %s: %w", row.ID, err))
				}
			}
			page.AfterAccount, page.AfterID = row.AccountID, row.ID
		}
		if len(rows) < sweepPage || ctx.Err() != nil {
			if len(lost) > 0 {
				failed = errors.Join(failed, fmt.Errorf("webhook: number of secrets that do not open: %d; the first: %w", len(lost), lost[0]))
			}
			return failed
		}
	}
}

// sweepOne deletes deliveries of a webhook from before a time. It deletes all of them, and the
// webhook, if that is gone.
func sweepOne(ctx context.Context, database *postgres.DB, row db.WebhooksToSweepRow, before time.Time) error {
	beforeID := FirstDeliveryID(before)
	if row.IsGone {
		beforeID, before = afterAllDeliveries, endOfTime
	}
	for _, status := range statuses {
		params := db.WebhookSweepDeliveriesParams{AccountID: row.AccountID, WebhookID: row.ID, Status: status, BeforeID: beforeID, Before: before, BatchSize: sweepBatch}
		for swept := int64(sweepBatch); swept == sweepBatch; {
			var err error
			if swept, err = sweepStep(ctx, database, row.AccountID, func(ctx context.Context, queries *db.Queries) (int64, error) {
				return queries.WebhookSweepDeliveries(ctx, params)
			}); err != nil {
				return err
			}
		}
	}
	if !row.IsGone {
		return nil
	}
	_, err := sweepStep(ctx, database, row.AccountID, func(ctx context.Context, queries *db.Queries) (int64, error) {
		return queries.WebhookForget(ctx, db.WebhookForgetParams{AccountID: row.AccountID, ID: row.ID})
	})
	return err
}

// sweepStep runs a step in a transaction, unless another process sweeps the account. It
// returns the number of rows that the step deleted, after a pause.
func sweepStep(ctx context.Context, database *postgres.DB, accountID int64, step func(context.Context, *db.Queries) (int64, error)) (int64, error) {
	began := time.Now()
	defer func() { sleep.For(ctx, time.Since(began)) }()
	swept, err := account.SweepStep(ctx, database, accountID, step)
	if errors.Is(err, account.ErrBusy) {
		return 0, nil
	}
	return swept, err
}

package delivery

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"

	"petstore/db"
	"petstore/internal/event"
	"petstore/internal/webhook"
)

const (
	// page is the maximum number of rows that one statement reads.
	page = 1000
	// allTypes in the types of a webhook means all.
	allTypes = "*"
)

// dispatchWoken dispatches the accounts that [Worker.Wake] has named, until ctx ends.
func (w *Worker) dispatchWoken(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-w.woken:
		}
		w.mu.Lock()
		ids := slices.Sorted(maps.Keys(w.toLook))
		clear(w.toLook)
		w.mu.Unlock()
		for some := range slices.Chunk(ids, page) {
			w.warn(ctx, "could not look for events to deliver", w.dispatch(ctx, some))
		}
	}
}

// dispatch dispatches accounts. It notes which of them have no enabled webhook.
func (w *Worker) dispatch(ctx context.Context, ids []int64) error {
	rows, err := w.queries.DispatchAccounts(ctx, db.DispatchAccountsParams{Ids: ids, PageSize: page})
	if err != nil {
		return err
	}
	without := map[int64]bool{}
	for _, id := range ids {
		without[id] = true
	}
	var accounts []int64
	for _, row := range rows {
		delete(without, row.AccountID)
		if row.HasNew {
			accounts = append(accounts, row.AccountID)
		}
	}
	w.mu.Lock()
	maps.Copy(w.idle, without)
	w.mu.Unlock()
	w.dispatchAll(ctx, accounts)
	return nil
}

// dispatchAll dispatches accounts, a few at a time. It logs errors.
func (w *Worker) dispatchAll(ctx context.Context, accounts []int64) {
	queue := make(chan int64)
	var running sync.WaitGroup
	for range min(dispatchers, len(accounts)) {
		running.Go(func() {
			for id := range queue {
				w.warn(ctx, "could not add deliveries of events", w.dispatchAccount(ctx, id))
			}
		})
	}
	for _, id := range accounts {
		queue <- id
	}
	close(queue)
	running.Wait()
}

// dispatchAccount adds the deliveries of all new events of an account.
func (w *Worker) dispatchAccount(ctx context.Context, accountID int64) error {
	for {
		hasMore, err := transact(ctx, w, func(ctx context.Context, tx pgx.Tx) (bool, error) {
			return w.dispatchPage(ctx, tx, accountID)
		})
		if err != nil || !hasMore {
			return err
		}
	}
}

// dispatchPage adds the deliveries of at most a page of events. It reports whether there
// are more. The webhooks are locked before the end of the feed is read. So no event is
// missed that another process dispatches at the same time.
func (w *Worker) dispatchPage(ctx context.Context, tx pgx.Tx, accountID int64) (hasMore bool, err error) {
	queries := db.New(tx)
	webhooks, err := queries.DispatchLock(ctx, accountID)
	if err != nil || len(webhooks) == 0 {
		return false, err
	}
	end, err := queries.FeedEnd(ctx, accountID)
	if err != nil {
		return false, err
	}
	after := end.LastSequence
	for _, to := range webhooks {
		after = min(after, to.AfterSequence)
	}
	if after == end.LastSequence {
		return false, nil
	}
	events, err := queries.DispatchEvents(ctx, db.DispatchEventsParams{AccountID: accountID, AfterSequence: after, LastSequence: end.LastSequence, PageSize: page})
	if err != nil {
		return false, err
	}
	last := end.LastSequence
	if len(events) == page {
		last = events[page-1].Sequence
	}
	made, jobs, err := w.deliveriesOf(accountID, webhooks, events)
	if err != nil {
		return false, err
	}
	if len(made.Ids) > 0 {
		if err := queries.DeliveriesInsert(ctx, made); err != nil {
			return false, err
		}
		if _, err := w.jobs.InsertManyTx(ctx, tx, jobs); err != nil {
			return false, fmt.Errorf("delivery: adding jobs: %w", err)
		}
	}
	moved := db.DispatchMoveParams{AccountID: accountID, AfterSequence: last}
	for _, to := range webhooks {
		moved.Ids = append(moved.Ids, to.ID)
	}
	if len(events) > 0 {
		w.options.Metrics.WebhookDispatched(time.Since(events[0].CreatedAt))
	}
	return last < end.LastSequence, queries.DispatchMove(ctx, moved)
}

// deliveriesOf returns the deliveries of events to webhooks, and the jobs for them.
func (w *Worker) deliveriesOf(accountID int64, webhooks []db.DispatchLockRow, events []db.DispatchEventsRow) (made db.DeliveriesInsertParams, jobs []river.InsertManyParams, err error) {
	made.AccountID = accountID
	for _, to := range webhooks {
		before := len(made.Ids)
		for _, e := range events {
			if e.Sequence <= to.AfterSequence || !wants(to.Types, e.Type) {
				continue
			}
			if err := addDelivery(&made, to.ID, e.Type, event.ID{Sequence: e.Sequence, Nonce: uint32(e.Nonce)}); err != nil { //nolint:gosec // events_nonce_check
				return made, nil, err
			}
		}
		if len(made.Ids) > before {
			jobs = append(jobs, drainJob(accountID, to.ID, to.IsFailing))
		}
	}
	return made, jobs, nil
}

// addDelivery adds the delivery of an event to a webhook.
func addDelivery(made *db.DeliveriesInsertParams, webhookID, eventType string, id event.ID) error {
	deliveryID, err := webhook.NewDeliveryID()
	made.Ids = append(made.Ids, deliveryID)
	made.WebhookIds = append(made.WebhookIds, webhookID)
	made.EventIds = append(made.EventIds, id.String())
	made.Sequences = append(made.Sequences, id.Sequence)
	made.Types = append(made.Types, eventType)
	return err
}

// wants reports whether a webhook with some types gets an event of a type.
func wants(types []string, eventType string) bool {
	return slices.Contains(types, eventType) || slices.Contains(types, allTypes)
}

// sweepAccounts dispatches all accounts with events that are not dispatched. It logs errors.
func (w *Worker) sweepAccounts(ctx context.Context) {
	w.mu.Lock()
	clear(w.idle)
	w.mu.Unlock()
	w.warn(ctx, "could not look for events to deliver", w.dispatchEvery(ctx))
}

// sweepWebhooks adds jobs for all webhooks that have something to do, and starts the jobs
// of processes that have died again. It logs errors.
func (w *Worker) sweepWebhooks(ctx context.Context) {
	w.mu.Lock()
	running := slices.Collect(maps.Values(w.busy))
	w.mu.Unlock()
	err := w.queries.JobsTouch(ctx, running)
	if err == nil {
		_, err = w.queries.JobsRescue(ctx)
	}
	w.warn(ctx, "could not look after the jobs of webhooks", err)
	w.warn(ctx, "could not look for deliveries that are due", w.addJobs(ctx))
}

// dispatchEvery dispatches all accounts with events that are not dispatched.
func (w *Worker) dispatchEvery(ctx context.Context) error {
	for last := int64(0); ; {
		rows, err := w.queries.DispatchAccounts(ctx, db.DispatchAccountsParams{Every: true, Ids: []int64{}, AfterID: last, PageSize: page})
		if err != nil {
			return err
		}
		var accounts []int64
		for _, row := range rows {
			accounts = append(accounts, row.AccountID)
			last = row.AccountID
		}
		w.dispatchAll(ctx, accounts)
		if len(rows) < page {
			return nil
		}
	}
}

// addJobs adds jobs for all webhooks that have something to do and no job in this
// process. River drops those that have a job in another process.
func (w *Worker) addJobs(ctx context.Context) error {
	after := db.DrainWebhooksParams{PageSize: page}
	var oldest, oldestFailing float64
	for {
		rows, err := w.queries.DrainWebhooks(ctx, after)
		if err != nil {
			return err
		}
		var jobs []river.InsertManyParams
		for _, row := range rows {
			if row.IsFailing {
				oldestFailing = max(oldestFailing, row.DueFor)
			} else {
				oldest = max(oldest, row.DueFor)
			}
			if !w.isBusy(row.ID) {
				jobs = append(jobs, drainJob(row.AccountID, row.ID, row.IsFailing))
			}
			after.AfterAccount, after.AfterID = row.AccountID, row.ID
		}
		if len(jobs) > 0 {
			if _, err := transact(ctx, w, func(ctx context.Context, tx pgx.Tx) (any, error) { return w.jobs.InsertManyTx(ctx, tx, jobs) }); err != nil {
				return fmt.Errorf("delivery: adding jobs: %w", err)
			}
		}
		if len(rows) < page {
			w.options.Metrics.SetWebhooksDue(oldest, oldestFailing)
			return nil
		}
	}
}

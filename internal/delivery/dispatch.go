package delivery

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/riverqueue/river"

	"petstore/db"
	"petstore/internal/event"
	"petstore/internal/postgres"
	"petstore/internal/webhook"
)

const (
	// page is the maximum number of rows that one statement reads or inserts.
	page = 1000
	// allTypes in the types of a webhook means all.
	allTypes = "*"
	// lockedPause is the time until the next look at webhooks that somebody else had locked.
	lockedPause = 20 * time.Millisecond
)

// lookAtWoken adds the accounts that [Worker.Wake] has named to the queue of the
// dispatchers, until ctx ends. It leaves out those without an enabled webhook.
func (w *Worker) lookAtWoken(ctx context.Context) {
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
			w.warn(ctx, "could not look for events to deliver", w.lookAt(ctx, some))
		}
	}
}

// lookAt adds accounts to the queue of the dispatchers. It notes which of them have no
// enabled webhook.
func (w *Worker) lookAt(ctx context.Context, ids []int64) error {
	rows, err := w.queries.DispatchAccounts(ctx, db.DispatchAccountsParams{Ids: ids, PageSize: page})
	if err != nil {
		return err
	}
	without := map[int64]bool{}
	for _, id := range ids {
		without[id] = true
	}
	for _, row := range rows {
		delete(without, row.AccountID)
		if row.Undispatched > 0 {
			w.turns.add(row.AccountID)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	maps.Copy(w.idle, without)
	return nil
}

// sweepAccounts adds all accounts with events that are not dispatched to the queue of the
// dispatchers. It logs errors.
func (w *Worker) sweepAccounts(ctx context.Context) {
	w.mu.Lock()
	clear(w.idle)
	w.mu.Unlock()
	w.warn(ctx, "could not look for events to deliver", w.lookAtAll(ctx))
}

func (w *Worker) lookAtAll(ctx context.Context) error {
	undispatched := int64(0)
	for last := int64(0); ; {
		rows, err := w.queries.DispatchAccounts(ctx, db.DispatchAccountsParams{Every: true, Ids: []int64{}, AfterID: last, PageSize: page})
		if err != nil {
			return err
		}
		for _, row := range rows {
			w.turns.add(row.AccountID)
			undispatched += row.Undispatched
			last = row.AccountID
		}
		if len(rows) < page {
			w.options.Metrics.SetUndispatchedEvents(undispatched)
			return nil
		}
	}
}

// dispatch dispatches a page of each account in the queue, until ctx ends. It logs errors.
func (w *Worker) dispatch(ctx context.Context) {
	for {
		accountID, ok := w.turns.take(ctx)
		if !ok {
			return
		}
		left, err := postgres.Transact(ctx, w.db, func(ctx context.Context, tx pgx.Tx) (rest, error) {
			return w.dispatchPage(ctx, tx, accountID)
		})
		w.turns.done(accountID)
		switch {
		case err != nil:
			w.warn(ctx, "could not add deliveries of events", err)
		case left == restNow:
			w.turns.add(accountID)
		case left == restLater:
			time.AfterFunc(lockedPause, func() { w.turns.add(accountID) })
		}
	}
}

// rest tells what remains of the events of an account after a turn.
type rest int

const (
	restNone  rest = iota
	restNow        // the next page
	restLater      // the events of webhooks that somebody else has locked
)

// dispatchPage adds the deliveries of a page of events of an account. The webhooks are locked
// before the end of the feed is read. So no event is missed that another process dispatches
// at the same time. It does not wait for locks, because others wait for the dispatcher.
func (w *Worker) dispatchPage(ctx context.Context, tx pgx.Tx, accountID int64) (rest, error) {
	queries := db.New(tx)
	webhooks, err := queries.DispatchLock(ctx, accountID)
	if err != nil {
		return restNone, err
	}
	end, err := queries.DispatchEnd(ctx, accountID)
	if errors.Is(err, pgx.ErrNoRows) {
		return restNone, nil // the account is closed
	}
	if err != nil {
		return restNone, err
	}
	locked := restNone
	if end.Enabled > int64(len(webhooks)) {
		locked = restLater
	}
	after := end.LastSequence
	for _, to := range webhooks {
		after = min(after, to.AfterSequence)
	}
	if after == end.LastSequence {
		return locked, nil
	}
	last, err := w.dispatchTo(ctx, tx, webhooks, section{accountID, after, end.LastSequence})
	if last < end.LastSequence {
		return restNow, err
	}
	return locked, err
}

// section is a section of the feed of an account: the events after a number, up to another.
type section struct {
	accountID, after, end int64
}

// dispatchTo adds the deliveries of the first page of a section to webhooks. It returns the
// number of the last event of the page.
func (w *Worker) dispatchTo(ctx context.Context, tx pgx.Tx, webhooks []db.DispatchLockRow, of section) (last int64, err error) {
	queries := db.New(tx)
	limit := page / len(webhooks)
	events, err := queries.DispatchEvents(ctx, db.DispatchEventsParams{AccountID: of.accountID, AfterSequence: of.after, LastSequence: of.end, PageSize: int32(limit)}) //nolint:gosec // at most page
	if err != nil {
		return of.end, err
	}
	last = of.end
	if len(events) == limit {
		last = events[limit-1].Sequence
	}
	if err := w.addDeliveries(ctx, tx, of.accountID, webhooks, events); err != nil {
		return of.end, err
	}
	moved := db.DispatchMoveParams{AccountID: of.accountID, AfterSequence: last}
	for _, to := range webhooks {
		moved.Ids = append(moved.Ids, to.ID)
	}
	if len(events) > 0 {
		w.options.Metrics.WebhookDispatched(seconds(events[0].Age))
	}
	return last, queries.DispatchMove(ctx, moved)
}

// addDeliveries adds the deliveries of events to webhooks, and the jobs for them.
func (w *Worker) addDeliveries(ctx context.Context, tx pgx.Tx, accountID int64, webhooks []db.DispatchLockRow, events []db.DispatchEventsRow) error {
	made := db.DeliveriesInsertParams{AccountID: accountID}
	var jobs []river.InsertManyParams
	for _, to := range webhooks {
		before := len(made.Ids)
		for _, e := range events {
			if e.Sequence <= to.AfterSequence || !wants(to.Types, e.Type) {
				continue
			}
			if err := addDelivery(&made, to.ID, e.Type, event.ID{Sequence: e.Sequence, Nonce: uint32(e.Nonce)}); err != nil { //nolint:gosec // events_nonce_check
				return err
			}
		}
		if len(made.Ids) > before {
			jobs = append(jobs, drainJob(accountID, to.ID, to.IsSlow))
		}
	}
	if len(made.Ids) == 0 {
		return nil
	}
	if err := db.New(tx).DeliveriesInsert(ctx, made); err != nil {
		return err
	}
	if _, err := w.jobs.InsertManyTx(ctx, tx, jobs); err != nil {
		return fmt.Errorf("delivery: adding jobs: %w", err)
	}
	return nil
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

// seconds returns a duration from PostgreSQL.
func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

package delivery

import (
	"context"
	"errors"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"petstore/db"
	"petstore/internal/event"
	"petstore/internal/postgres"
	"petstore/internal/sleep"
	"petstore/internal/webhook"
)

const (
	// page is the maximum number of rows that one statement reads or inserts.
	page = 1000
	// lockedPause is the time until the next look at webhooks that somebody else had locked.
	lockedPause = 20 * time.Millisecond
)

// lookAtWoken starts to dispatch to the accounts that [Worker.Wake] has named.
func (w *Worker) lookAtWoken(ctx context.Context, accounts map[int64]bool) {
	for ids := range slices.Chunk(slices.Sorted(maps.Keys(accounts)), page) {
		ids = w.db.Reachable(ids)
		w.warn(ctx, "could not look for events to deliver", w.lookAt(w.db.ForAccounts(ctx, ids...), ids))
	}
}

// everywhere does something with the rows of all accounts, which it reads in pages. While a node of
// a sharded cluster is lost, a statement for all accounts would fail. So everywhere looks at a page
// of the accounts of the other nodes at a time.
func everywhere[Row any](ctx context.Context, w *Worker, read func(ctx context.Context, every bool, ids []int64, after Row) ([]Row, error), do func(ctx context.Context, row Row)) error {
	look := func(ctx context.Context, every bool, ids []int64) error {
		for after := *new(Row); ; {
			rows, err := read(ctx, every, ids, after)
			if err != nil {
				return err
			}
			for _, row := range rows {
				do(ctx, row)
				after = row
			}
			if len(rows) < page {
				return nil
			}
		}
	}
	if !w.db.HasLostNode() {
		return look(postgres.ForAllAccounts(ctx), true, []int64{})
	}
	for last := int64(0); ; {
		all, err := w.queries.AccountsAfter(ctx, db.AccountsAfterParams{AfterID: last, PageSize: page})
		if err != nil || len(all) == 0 {
			return err
		}
		last = all[len(all)-1]
		if ids := w.db.Reachable(all); len(ids) > 0 {
			if err := look(w.db.ForAccounts(ctx, ids...), false, ids); err != nil {
				return err
			}
		}
	}
}

// lookAt starts to dispatch to accounts. It notes which of them have no webhook to dispatch
// to.
func (w *Worker) lookAt(ctx context.Context, ids []int64) error {
	rows, err := w.queries.DispatchAccountsOf(ctx, ids)
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
			w.startDispatch(ctx, row.AccountID, row.PayerID)
		}
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	maps.Copy(w.idle, without)
	return nil
}

// sweepAccounts starts to dispatch to all accounts with events that are not dispatched.
func (w *Worker) sweepAccounts(ctx context.Context) error {
	w.mu.Lock()
	clear(w.idle)
	w.mu.Unlock()
	undispatched := int64(0)
	err := everywhere(ctx, w, func(ctx context.Context, every bool, ids []int64, after db.DispatchAccountsRow) ([]db.DispatchAccountsRow, error) {
		return w.queries.DispatchAccounts(ctx, db.DispatchAccountsParams{Every: every, Ids: ids, AfterID: after.AccountID, PageSize: page})
	}, func(ctx context.Context, row db.DispatchAccountsRow) {
		w.startDispatch(ctx, row.AccountID, row.PayerID)
		undispatched += row.Undispatched
	})
	switch {
	case err == nil:
		w.options.Metrics.SetUndispatchedEvents(undispatched)
	case ctx.Err() == nil: // the worker does not stop
		w.options.Metrics.ForgetUndispatchedEvents()
	}
	return err
}

// startDispatch starts to dispatch the events of an account, a page for each turn of its payer.
func (w *Worker) startDispatch(ctx context.Context, accountID, payer int64) {
	w.accounts.start(accountID, payer, func() {
		for left := restNow; left != restNone && ctx.Err() == nil; {
			var err error
			if left, err = w.dispatchTurn(ctx, accountID, payer); err != nil {
				w.warn(ctx, "could not add deliveries of events", err)
				return
			}
			if left == restLater {
				sleep.For(ctx, lockedPause)
			}
		}
	})
}

// dispatchTurn waits for a turn of the payer, and dispatches a page of the events of an
// account. It then wakes the drains of their webhooks.
func (w *Worker) dispatchTurn(ctx context.Context, accountID, payer int64) (rest, error) {
	if err := w.dispatches.Take(ctx, payer, 1); err != nil {
		return restNone, err
	}
	defer w.dispatches.Give(payer, 1)
	ctx = w.db.ForAccounts(ctx, accountID)
	w.accounts.listen(accountID)
	var due []db.DispatchLockRow
	left, err := postgres.Transact(ctx, w.db, func(ctx context.Context, tx pgx.Tx) (left rest, err error) {
		left, due, err = w.dispatchPage(ctx, db.New(tx), accountID)
		return left, err
	})
	if err != nil {
		return restNone, err
	}
	for _, to := range due {
		if to.IsEnabled && to.IsFree { // else the release of its lease finds the deliveries, or a sweep
			w.startDrain(ctx, endpoint{accountID, to.ID}, payer, to.IsSlow)
		}
	}
	return left, nil
}

// rest says what remains after a turn: events of an account, or messages of a webhook.
type rest int

const (
	restNone  rest = iota
	restNow        // the next page
	restLater      // somebody else has locked webhooks, or too many deliveries are pending
)

// dispatchPage adds the deliveries of a page of events of an account, and returns the
// webhooks that get some. The webhooks are locked before the end of the feed is read. So no
// event is missed that another process dispatches at the same time. It does not wait for
// locks, because others wait for the dispatcher.
func (w *Worker) dispatchPage(ctx context.Context, queries *db.Queries, accountID int64) (left rest, due []db.DispatchLockRow, err error) {
	webhooks, err := queries.DispatchLock(ctx, accountID)
	if err != nil {
		return restNone, nil, err
	}
	end, err := queries.DispatchEnd(ctx, accountID)
	if errors.Is(err, pgx.ErrNoRows) {
		return restNone, nil, nil // the account is closed
	}
	if err != nil {
		return restNone, nil, err
	}
	if end.Webhooks > int64(len(webhooks)) {
		left = restLater
	}
	last := int64(0)
	for i, to := range webhooks {
		webhooks[i].UntilSequence = new(endOf(to, end.LastSequence))
		last = max(last, *webhooks[i].UntilSequence)
	}
	webhooks = slices.DeleteFunc(webhooks, func(to db.DispatchLockRow) bool { return to.AfterSequence >= *to.UntilSequence })
	if len(webhooks) == 0 {
		return left, nil, nil
	}
	after := last
	for _, to := range webhooks {
		after = min(after, to.AfterSequence)
	}
	reached, due, err := w.dispatchTo(ctx, queries, webhooks, section{accountID, after, last})
	if reached < last {
		left = restNow
	}
	return left, due, err
}

// endOf returns the number of the last event that a webhook gets.
func endOf(to db.DispatchLockRow, last int64) int64 {
	if !to.IsEnabled && to.UntilSequence != nil {
		return min(last, *to.UntilSequence)
	}
	return last
}

// section is a section of the feed of an account: the events after a number, up to another.
type section struct {
	accountID, after, end int64
}

// dispatchTo adds the deliveries of the first page of a section to webhooks. It returns the
// number of the last event of the page, and the webhooks that get deliveries.
func (w *Worker) dispatchTo(ctx context.Context, queries *db.Queries, webhooks []db.DispatchLockRow, of section) (last int64, due []db.DispatchLockRow, err error) {
	limit := page / len(webhooks)
	events, err := queries.DispatchEvents(ctx, db.DispatchEventsParams{AccountID: of.accountID, AfterSequence: of.after, LastSequence: of.end, PageSize: int32(limit)}) //nolint:gosec // at most page
	if err != nil {
		return of.end, nil, err
	}
	last = of.end
	if len(events) == limit {
		last = events[limit-1].Sequence
	}
	made := db.DeliveriesInsertParams{AccountID: of.accountID}
	moved := db.DispatchMoveParams{AccountID: of.accountID, AfterSequence: last}
	for _, to := range webhooks {
		moved.Ids = append(moved.Ids, to.ID)
		before := len(made.Ids)
		addDeliveries(&made, to, events)
		if len(made.Ids) > before {
			due = append(due, to)
		}
	}
	if len(made.Ids) > 0 {
		if err := queries.DeliveriesInsert(ctx, made); err != nil {
			return of.end, nil, err
		}
	}
	if len(events) > 0 {
		w.options.Metrics.WebhookDispatched(seconds(max(0, events[0].Age))) // the clock can go back
	}
	return last, due, queries.DispatchMove(ctx, moved)
}

// addDeliveries adds the deliveries of the events that a webhook gets.
func addDeliveries(made *db.DeliveriesInsertParams, to db.DispatchLockRow, events []db.DispatchEventsRow) {
	for _, e := range events {
		if to.AfterSequence < e.Sequence && e.Sequence <= *to.UntilSequence && webhook.Wants(to.Types, e.Type) {
			webhook.AddDelivery(made, to.ID, e.Type, event.IDOf(made.AccountID, e.Sequence, e.Nonce))
		}
	}
}

// seconds returns a duration from PostgreSQL.
func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

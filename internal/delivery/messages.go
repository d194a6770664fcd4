package delivery

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"petstore/db"
	"petstore/internal/event"
	"petstore/internal/httpjson"
	"petstore/internal/postgres"
	"petstore/internal/sleep"
	"petstore/internal/webhook"
)

const (
	messageQueued = string(event.MessageQueued)
	messagesPath  = "/messages/"

	// messageExpiry is how long a message waits for a webhook that subscribes to it.
	messageExpiry = 72 * time.Hour
	// lostAfter is the age of a queued message whose deliveries, or the event of which, may
	// have been deleted. Such a message has failed, even if a webhook subscribes.
	lostAfter = 32 * 24 * time.Hour
	// settlePage is the maximum number of messages that a step adapts to a webhook.
	settlePage = 500
	// backlogPause is the time until the next look at an account with too many pending deliveries,
	// which takes up to 60 ms.
	backlogPause = time.Minute
)

// settleMessages ends messages whose deliveries have decided about them. A message is
// delivered when every webhook that subscribes has accepted it, and at least one webhook
// has. It has failed when the attempts of one are exhausted. It has also failed when it has
// expired, from before a time, and no webhook is still to get it. It returns the events of the
// change, which the caller must append to the feed.
func settleMessages(ctx context.Context, queries *db.Queries, accountID int64, ids []string, expired time.Time) ([]event.Event, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	// A batch can have two deliveries of a message: one that a request has retried, and one of [catchUp].
	ids = slices.Compact(slices.Sorted(slices.Values(ids)))
	locked, err := queries.MessagesLock(ctx, db.MessagesLockParams{AccountID: accountID, Ids: ids, PageSize: page})
	if err != nil || len(locked) == 0 {
		return nil, err
	}
	// The next statements come after the lock, so they see what other transactions have recorded. A
	// reset may have given an id to another message.
	params := db.MessageVotesParams{AccountID: accountID, PageSize: page}
	for _, m := range locked {
		params.Ids = append(params.Ids, m.ID)
	}
	newest, err := eventsOf(ctx, queries, accountID, params.Ids)
	if err != nil {
		return nil, err
	}
	for _, id := range params.Ids {
		params.Sequences = append(params.Sequences, newest[id].Sequence)
	}
	rows, err := queries.MessageVotes(ctx, params)
	if err != nil {
		return nil, err
	}
	votes := map[string]db.MessageVotesRow{}
	for _, row := range rows {
		votes[row.ID] = row
	}
	changed := db.MessagesUpdateParams{AccountID: accountID}
	var events []event.Event
	for _, m := range locked {
		kind, status := decide(votes[m.ID], m.CreatedAt.Before(expired))
		if kind == "" {
			continue
		}
		data, err := httpjson.Encode(map[string]any{"message": event.Message{ID: m.ID, Message: m.Message, Status: status, CreatedAt: m.CreatedAt.UTC()}})
		if err != nil {
			return nil, err
		}
		changed.Ids, changed.Statuses = append(changed.Ids, m.ID), append(changed.Statuses, status)
		events = append(events, event.Event{Type: kind, Subject: messagesPath + m.ID, Data: data})
	}
	if len(events) == 0 {
		return nil, nil
	}
	return events, queries.MessagesUpdate(ctx, changed)
}

// decide returns the status of a message by its deliveries, and the type of the event; "":
// it stays queued.
func decide(votes db.MessageVotesRow, expired bool) (event.Type, string) {
	switch {
	case votes.Failed > 0:
		return event.MessageFailed, "failed"
	case votes.Pending > 0, votes.IsAhead:
		return "", ""
	case votes.Accepted > 0:
		return event.MessageDelivered, "delivered"
	case expired:
		return event.MessageFailed, "failed"
	default:
		return "", ""
	}
}

// settleWebhooks starts to adapt the messages that wait to the webhooks that have changed.
func (w *Worker) settleWebhooks(ctx context.Context) error {
	return everywhere(ctx, w, func(ctx context.Context, every bool, ids []int64, after db.WebhooksToSettleRow) ([]db.WebhooksToSettleRow, error) {
		return w.queries.WebhooksToSettle(ctx, db.WebhooksToSettleParams{Every: every, Ids: ids, AfterAccount: after.AccountID, AfterID: after.ID, PageSize: page})
	}, func(ctx context.Context, row db.WebhooksToSettleRow) {
		w.startSettling(ctx, row.PayerID, endpoint{row.AccountID, row.ID})
	})
}

// startSettling starts to adapt the messages that wait to a webhook. Payers take turns. In the turns of
// a payer, each of its webhooks takes one step before any takes the next.
func (w *Worker) startSettling(ctx context.Context, payer int64, to endpoint) {
	w.changed.start(to, payer, func() {
		for left := restNow; left != restNone && ctx.Err() == nil; {
			var err error
			left, err = w.settle(ctx, payer, to)
			w.warn(ctx, "could not adapt the messages that wait to a webhook; the next sweep tries again", err)
			if left == restLater {
				sleep.For(ctx, backlogPause)
			}
		}
	})
}

// settle waits for a turn of the payer, and adapts a page of the messages that wait to a change
// of a webhook. A webhook that subscribes gets those that it has not got. Another one does not
// hold up any. It returns which messages remain.
func (w *Worker) settle(ctx context.Context, payer int64, to endpoint) (left rest, err error) {
	if err := w.settlements.Take(ctx, payer, 1); err != nil {
		return restNone, err
	}
	defer w.settlements.Give(payer, 1)
	w.changed.listen(to) // this step serves all sweeps before it
	err = w.change(ctx, payer, to.AccountID, func(ctx context.Context, queries *db.Queries) ([]event.Event, error) {
		left = restNone
		webhook, err := queries.WebhookLock(ctx, db.WebhookLockParams{AccountID: to.AccountID, ID: to.WebhookID})
		if errors.Is(err, pgx.ErrNoRows) || err == nil && webhook.UnsettledAfter == nil {
			return nil, nil // another process has done it
		}
		if err != nil {
			return nil, err
		}
		ids, err := queries.MessagesQueued(ctx, db.MessagesQueuedParams{AccountID: to.AccountID, AfterID: *webhook.UnsettledAfter, PageSize: settlePage})
		if err != nil {
			return nil, err
		}
		settled := db.WebhookSettleParams{AccountID: to.AccountID, ID: to.WebhookID}
		if len(ids) == settlePage {
			left = restNow
			settled.AfterID = &ids[len(ids)-1]
		}
		// The position moves first, because the votes depend on it.
		if err := queries.WebhookSettle(ctx, settled); err != nil || len(ids) == 0 {
			return nil, err
		}
		return settlePageOf(ctx, queries, to, webhook, ids)
	})
	switch {
	case errors.Is(err, webhook.ErrTooManyDeliveries):
		return restLater, nil
	case err != nil:
		return restNone, fmt.Errorf("delivery: webhook %s: %w", to.WebhookID, err)
	}
	return left, nil
}

// settlePageOf adapts messages to a locked webhook, and returns the events about them.
func settlePageOf(ctx context.Context, queries *db.Queries, to endpoint, locked db.WebhookLockRow, ids []string) ([]event.Event, error) {
	if locked.Status == "enabled" && webhook.Wants(locked.Types, messageQueued) {
		queued, err := eventsOf(ctx, queries, to.AccountID, ids)
		if err == nil {
			err = catchUp(ctx, queries, to, locked.AfterSequence, queued)
		}
		if err != nil {
			return nil, err
		}
	}
	return settleMessages(ctx, queries, to.AccountID, ids, time.Time{})
}

// catchUp adds deliveries of the messages that a webhook has neither accepted nor is still
// to get. The dispatcher adds deliveries of events after its position. A delivery that has
// failed does not count, because the webhook was disabled since. The error is
// [webhook.ErrTooManyDeliveries] or comes from the database.
func catchUp(ctx context.Context, queries *db.Queries, to endpoint, position int64, messages map[string]event.ID) error {
	missing := map[int64]event.ID{}
	for _, e := range messages {
		if 0 < e.Sequence && e.Sequence <= position {
			missing[e.Sequence] = e
		}
	}
	sequences := slices.Sorted(maps.Keys(missing))
	held, err := queries.MessagesHeld(ctx, db.MessagesHeldParams{AccountID: to.AccountID, WebhookID: to.WebhookID, Sequences: sequences, PageSize: settlePage})
	if err != nil {
		return err
	}
	for _, sequence := range held {
		delete(missing, sequence)
	}
	made := db.DeliveriesInsertParams{AccountID: to.AccountID}
	for _, sequence := range slices.Sorted(maps.Keys(missing)) {
		webhook.AddDelivery(&made, to.WebhookID, messageQueued, missing[sequence])
	}
	if len(made.Ids) == 0 {
		return nil
	}
	backlog, err := queries.SettleBacklog(ctx, db.SettleBacklogParams{AccountID: to.AccountID, Most: webhook.MaxBacklog + 1})
	if err == nil && backlog > webhook.MaxBacklog {
		err = webhook.ErrTooManyDeliveries
	}
	if err != nil {
		return err
	}
	return queries.DeliveriesInsert(ctx, made)
}

// eventsOf returns the ids of the newest events of messages. The id is zero if the feed no longer
// has the event.
func eventsOf(ctx context.Context, queries *db.Queries, accountID int64, ids []string) (map[string]event.ID, error) {
	events := map[string]event.ID{}
	var subjects []string
	for _, id := range ids {
		events[id] = event.ID{}
		subjects = append(subjects, messagesPath+id)
	}
	rows, err := queries.MessageEvents(ctx, db.MessageEventsParams{AccountID: accountID, Subjects: subjects, PageSize: page})
	for _, row := range rows {
		events[strings.TrimPrefix(row.Subject, messagesPath)] = event.IDOf(accountID, row.Sequence, row.Nonce)
	}
	return events, err
}

// expireMessages ends the messages for which no webhook has subscribed in time. The messages of samples
// wait forever. An account whose messages cannot be ended does not keep the messages of others. It returns the
// first error.
func (w *Worker) expireMessages(ctx context.Context) error {
	now, err := w.queries.Clock(ctx)
	if err != nil {
		return err
	}
	next := db.MessagesExpiredParams{Before: now.Add(-messageExpiry), PageSize: page}
	lost := now.Add(-lostAfter)
	var failed error
	for {
		rows, err := w.queries.MessagesExpired(postgres.ForAllAccounts(ctx), next)
		if err != nil {
			return cmp.Or(failed, err)
		}
		byAccount, accounts := map[int64][]string{}, map[int64]db.MessagesExpiredRow{}
		for _, row := range rows {
			if row.IsSample || !row.Closed && (!row.HasSubscriber || row.CreatedAt.Before(lost)) {
				byAccount[row.AccountID], accounts[row.AccountID] = append(byAccount[row.AccountID], row.ID), row
			}
			next.AfterTime, next.AfterAccount, next.AfterID = row.CreatedAt, row.AccountID, row.ID
		}
		for accountID, ids := range byAccount {
			expire := func(ctx context.Context, queries *db.Queries) ([]event.Event, error) {
				if accounts[accountID].IsSample {
					return nil, queries.MessagesKeep(ctx, db.MessagesKeepParams{AccountID: accountID, Ids: ids})
				}
				return settleMessages(ctx, queries, accountID, ids, next.Before)
			}
			if err := w.change(ctx, accounts[accountID].PayerID, accountID, expire); err != nil {
				failed = cmp.Or(failed, fmt.Errorf("delivery: the messages of account %d: %w", accountID, err))
			}
		}
		if len(rows) < page || ctx.Err() != nil {
			return failed
		}
	}
}

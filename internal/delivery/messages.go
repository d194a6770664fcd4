package delivery

import (
	"context"
	"encoding/hex"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/google/uuid"
	"github.com/jackc/pgx/v5"

	"petstore/db"
	"petstore/internal/event"
	"petstore/internal/httpjson"
)

// MessageExpiry is how long a message waits for a webhook that subscribes to it.
const MessageExpiry = 72 * time.Hour

// settleMessages ends messages whose deliveries have decided about them. A message is
// delivered when every enabled webhook has accepted it, and at least one webhook has. It
// has failed when the attempts of one are exhausted, or when it has expired and no
// delivery is pending. The messages map to the numbers of their events. It returns the
// events of the change, which the caller must append to the feed.
func settleMessages(ctx context.Context, queries *db.Queries, accountID int64, messages map[string]int64, expired bool) ([]event.Event, error) {
	if len(messages) == 0 {
		return nil, nil
	}
	locked, err := queries.MessagesLock(ctx, db.MessagesLockParams{AccountID: accountID, Ids: slices.Collect(maps.Keys(messages)), PageSize: page})
	if err != nil || len(locked) == 0 {
		return nil, err
	}
	// This statement comes after the lock, so it sees what other transactions have recorded.
	rows, err := queries.MessageVotes(ctx, db.MessageVotesParams{AccountID: accountID, Sequences: slices.Collect(maps.Values(messages)), PageSize: page})
	if err != nil {
		return nil, err
	}
	votes := map[int64]db.MessageVotesRow{}
	for _, row := range rows {
		votes[row.Sequence] = row
	}
	changed := db.MessagesUpdateParams{AccountID: accountID}
	var events []event.Event
	for _, m := range locked {
		kind, status := decide(votes[messages[m.ID]], expired)
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
	case votes.Pending > 0:
		return "", ""
	case votes.Delivered > 0:
		return event.MessageDelivered, "delivered"
	case expired:
		return event.MessageFailed, "failed"
	default:
		return "", ""
	}
}

// settle adapts a page of the messages that wait to a change of the webhook. An enabled
// webhook gets those that it has not got. A disabled one does not hold up any.
func (d *drain) settle(ctx context.Context) error {
	emitted, err := transact(ctx, d.Worker, func(ctx context.Context, tx pgx.Tx) (int, error) {
		queries := db.New(tx)
		webhook, err := queries.WebhookLock(ctx, db.WebhookLockParams{AccountID: d.AccountID, ID: d.WebhookID})
		if err != nil || webhook.Settled {
			return 0, err
		}
		emitted, count := 0, 0
		switch {
		case webhook.Status != "enabled":
			emitted, count, err = d.release(ctx, queries)
		case wants(webhook.Types, messageQueued):
			count, err = d.catchUp(ctx, queries, webhook.AfterSequence)
		}
		if err == nil && count < page {
			err = queries.WebhookSettle(ctx, db.WebhookSettleParams{AccountID: d.AccountID, ID: d.WebhookID})
		}
		return emitted, err
	})
	if err != nil {
		return fmt.Errorf("delivery: settling the messages of webhook %s: %w", d.WebhookID, err)
	}
	if emitted > 0 {
		d.announce(d.AccountID)
	}
	return nil
}

// catchUp adds deliveries of messages that wait, and returns how many.
func (d *drain) catchUp(ctx context.Context, queries *db.Queries, afterSequence int64) (int, error) {
	rows, err := queries.MessagesWaiting(ctx, db.MessagesWaitingParams{AccountID: d.AccountID, WebhookID: d.WebhookID, AfterSequence: afterSequence, AfterID: d.settled, PageSize: page})
	if err != nil || len(rows) == 0 {
		return 0, err
	}
	made := db.DeliveriesInsertParams{AccountID: d.AccountID}
	for _, row := range rows {
		if err := addDelivery(&made, d.WebhookID, messageQueued, event.ID{Sequence: row.Sequence, Nonce: uint32(row.Nonce)}); err != nil { //nolint:gosec // events_nonce_check
			return 0, err
		}
		d.settled = row.ID
	}
	return len(rows), queries.DeliveriesInsert(ctx, made)
}

// release settles messages that waited for a webhook that is disabled now. It returns the
// number of events and of messages.
func (d *drain) release(ctx context.Context, queries *db.Queries) (emitted, count int, err error) {
	rows, err := queries.MessagesPending(ctx, db.MessagesPendingParams{AccountID: d.AccountID, WebhookID: d.WebhookID, AfterSequence: d.passed, PageSize: page})
	if err != nil {
		return 0, 0, err
	}
	messages := map[string]int64{}
	for _, row := range rows {
		messages[strings.TrimPrefix(row.Subject, messagesPath)] = row.Sequence
		d.passed = row.Sequence
	}
	events, err := settleMessages(ctx, queries, d.AccountID, messages, false)
	if err == nil && len(events) > 0 {
		err = event.Append(ctx, queries, d.AccountID, events...)
	}
	return len(events), len(rows), err
}

// expireMessages ends the messages for which no webhook has subscribed in time. It logs
// errors.
func (w *Worker) expireMessages(ctx context.Context) {
	w.warn(ctx, "could not end messages that wait too long", w.expireBefore(ctx, time.Now().Add(-MessageExpiry)))
}

// expireBefore ends the messages from before a time that no webhook is to get.
func (w *Worker) expireBefore(ctx context.Context, before time.Time) error {
	next := db.MessagesExpiredParams{BeforeID: messageIDAt(before), PageSize: page}
	for {
		rows, err := w.queries.MessagesExpired(ctx, next)
		if err != nil {
			return err
		}
		byAccount := map[int64][]string{}
		for _, row := range rows {
			byAccount[row.AccountID] = append(byAccount[row.AccountID], row.ID)
			next.AfterAccount, next.AfterID = row.AccountID, row.ID
		}
		for accountID, ids := range byAccount {
			if err := w.expire(ctx, accountID, ids); err != nil {
				return err
			}
		}
		if len(rows) < page {
			return nil
		}
	}
}

// expire ends those of the messages of an account that no webhook is to get.
func (w *Worker) expire(ctx context.Context, accountID int64, ids []string) error {
	emitted, err := transact(ctx, w, func(ctx context.Context, tx pgx.Tx) (int, error) {
		queries := db.New(tx)
		messages := map[string]int64{}
		var subjects []string
		for _, id := range ids {
			messages[id] = 0 // the feed no longer has its event, unless it is found
			subjects = append(subjects, messagesPath+id)
		}
		rows, err := queries.MessageEvents(ctx, db.MessageEventsParams{AccountID: accountID, Subjects: subjects, PageSize: page})
		if err != nil {
			return 0, err
		}
		for _, row := range rows {
			messages[strings.TrimPrefix(row.Subject, messagesPath)] = row.Sequence
		}
		events, err := settleMessages(ctx, queries, accountID, messages, true)
		if err == nil && len(events) > 0 {
			err = event.Append(ctx, queries, accountID, events...)
		}
		return len(events), err
	})
	if err == nil && emitted > 0 {
		w.announce(accountID)
	}
	return err
}

// messageIDAt returns the smallest id of a message from a time on.
func messageIDAt(at time.Time) string {
	var id uuid.UUID // version 7: the first 48 bits are the time in milliseconds
	ms := at.UnixMilli()
	for i := range 6 {
		id[i] = byte(ms >> (8 * (5 - i))) //nolint:gosec // the low byte
	}
	return "msg_" + hex.EncodeToString(id[:])
}

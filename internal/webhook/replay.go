package webhook

import (
	"context"
	"errors"
	"slices"

	"github.com/jackc/pgx/v5"

	"petstore/db"
	"petstore/internal/event"
	"petstore/internal/feed"
)

const (
	// MaxBacklog is the number of pending deliveries with which an account gets no more by a
	// replay, or of messages that wait. Deliveries of a disabled webhook count only if it is deleted.
	MaxBacklog = 100_000
	// An account may have 100 sandboxes, so each has less.
	sandboxReplayWindow = 1_000
	sandboxMaxBacklog   = 1_000
)

// ErrTooManyDeliveries means that an account has too many pending deliveries to get more.
var ErrTooManyDeliveries = errors.New("webhook: too many pending deliveries")

// AddDelivery adds the delivery of an event to a webhook.
func AddDelivery(made *db.DeliveriesInsertParams, webhookID, eventType string, id event.ID) {
	made.Ids = append(made.Ids, NewDeliveryID())
	made.WebhookIds = append(made.WebhookIds, webhookID)
	made.EventIds = append(made.EventIds, id.String())
	made.Sequences = append(made.Sequences, id.Sequence)
	made.Types = append(made.Types, eventType)
}

// Replay sends events of the feed of an account again to a webhook.
type Replay struct {
	queries *db.Queries
	account int64
	to      db.WebhookGetLockedRow
	// window is the maximum number of events that the replay looks through.
	window     int32
	maxBacklog int32
}

// NewReplay returns a replay to a webhook that the transaction of the queries has locked.
func NewReplay(queries *db.Queries, account int64, isSandbox bool, to db.WebhookGetLockedRow) Replay {
	if isSandbox {
		return Replay{queries, account, to, sandboxReplayWindow, sandboxMaxBacklog}
	}
	return Replay{queries, account, to, feed.Window, MaxBacklog}
}

// types returns the types that the webhook has and the request wants. A request without
// types wants all.
func (r Replay) types(wanted []string) []string {
	if wanted == nil {
		return r.to.Types
	}
	return slices.DeleteFunc(slices.Clone(wanted), func(name string) bool { return !Wants(r.to.Types, name) })
}

// Start returns the number of the event after which a replay begins. If after is nil, the
// replay begins with the oldest event that is kept. The error is the one of [feed.Find].
func (r Replay) Start(ctx context.Context, after *event.ID) (int64, error) {
	if after != nil {
		_, err := feed.Find(ctx, r.queries, &feed.Query{Account: r.account, After: after, Limit: 1})
		return after.Sequence, err
	}
	oldest, err := r.queries.EventOldest(ctx, r.account)
	if errors.Is(err, pgx.ErrNoRows) {
		return r.to.AfterSequence, nil
	}
	return oldest.Sequence - 1, err
}

// Looked returns the number of events that a replay after a number looks through.
func (r Replay) Looked(after int64) int64 {
	return max(0, min(r.to.AfterSequence-after, int64(r.window)))
}

// Run makes deliveries of the events after a number, and returns their number. Next is the
// event after which another replay goes on; nil: none. It leaves out the events whose
// delivery is pending, and those that the worker has not dispatched yet, because the webhook
// gets them anyway. The error is [ErrTooManyDeliveries] or comes from the database.
func (r Replay) Run(ctx context.Context, after int64, wanted []string) (deliveries int64, next *event.ID, err error) {
	if r.Looked(after) == 0 {
		return 0, nil, nil
	}
	types := r.types(wanted)
	last, err := feed.WindowEnd(ctx, r.queries, db.EventWindowEndParams{AccountID: r.account, AfterSequence: after, Last: after + int64(r.window)}, r.to.AfterSequence)
	if err != nil {
		return 0, nil, err
	}
	pending, err := r.pending(ctx, after, last)
	if err != nil {
		return 0, nil, err
	}
	rows, err := r.queries.ReplayEvents(ctx, db.ReplayEventsParams{
		AccountID: r.account, First: after, Last: last, Types: types, PageSize: r.window + 1,
	})
	if err != nil {
		return 0, nil, err
	}
	insert := db.DeliveriesInsertParams{AccountID: r.account}
	for _, row := range rows {
		id := event.IDOf(r.account, row.Sequence, row.Nonce)
		if row.Sequence == last && last < r.to.AfterSequence {
			next = &id
		}
		if row.Sequence == after || pending[row.Sequence] || !Wants(types, row.Type) {
			continue
		}
		AddDelivery(&insert, r.to.ID, row.Type, id)
	}
	if deliveries = int64(len(insert.Ids)); deliveries > 0 {
		err = r.queries.DeliveriesInsert(ctx, insert)
	}
	return deliveries, next, err
}

// pending returns the numbers of the events in a range whose deliveries are pending. So a
// replay that is repeated adds nothing. The error is [ErrTooManyDeliveries] or comes from
// the database.
func (r Replay) pending(ctx context.Context, after, last int64) (map[int64]bool, error) {
	row, err := r.queries.ReplayPending(ctx, db.ReplayPendingParams{
		AccountID: r.account, WebhookID: r.to.ID, AfterSequence: after, Last: last, Most: r.maxBacklog + 1,
	})
	if err == nil && row.Backlog > int64(r.maxBacklog) {
		err = ErrTooManyDeliveries
	}
	pending := make(map[int64]bool, len(row.Sequences))
	for _, sequence := range row.Sequences {
		pending[sequence] = true
	}
	return pending, err
}

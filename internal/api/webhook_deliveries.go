package api

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/go-json-experiment/json/jsontext"
	"github.com/jackc/pgx/v5"

	"petstore/db"
	"petstore/internal/auth"
	"petstore/internal/event"
	"petstore/internal/httpjson"
	"petstore/internal/webhook"
)

const (
	// replayWindow is the maximum number of events that one replay looks through. An account
	// with more than maxBacklog pending deliveries gets no more of them.
	replayWindow = 10_000
	maxBacklog   = 100_000
	// An account may have 100 sandboxes, so each has less.
	sandboxReplayWindow = 1_000
	sandboxMaxBacklog   = 1_000
	// replayedPerToken is the number of deliveries that count as one request.
	replayedPerToken = 100
)

// deliveryStatuses are the statuses of a delivery.
var deliveryStatuses = []string{"pending", "delivered", "failed"}

// delivery is the WebhookDelivery schema of the spec.
type delivery struct {
	ID            string         `json:"id"`
	EventID       string         `json:"eventId"`
	Type          string         `json:"type"`
	Status        string         `json:"status"`
	Attempts      jsontext.Value `json:"attempts"`
	NextAttemptAt *time.Time     `json:"nextAttemptAt,omitempty"`
	CreatedAt     time.Time      `json:"createdAt"`
}

func deliveryFrom(row db.WebhookDeliveryListRow) delivery {
	return delivery{
		ID: row.ID, EventID: row.EventID, Type: row.Type, Status: row.Status, Attempts: row.Attempts,
		NextAttemptAt: inUTC(row.NextAttemptAt), CreatedAt: row.CreatedAt.UTC(),
	}
}

// listWebhookDeliveries lists the deliveries to a webhook, newest first.
func (s *Server) listWebhookDeliveries(c *gin.Context) error {
	params := readParams(c)
	p := newPage(c, params, defaultLimit, newestFirst)
	statuses := deliveryStatuses
	if status, given := params.Enum("status", deliveryStatuses...); given {
		statuses = []string{status}
	}
	if err := params.Err(); err != nil {
		return err
	}
	at, err := s.readWebhook(c)
	if err != nil {
		return err
	}
	p.path = webhooksPath + "/" + at.ID // so that a cursor is valid for this webhook only
	return writePage(s, c, p, list[db.WebhookDeliveryListRow, delivery]{
		find: func(ctx context.Context) ([]db.WebhookDeliveryListRow, error) {
			return s.reads.WebhookDeliveryList(ctx, db.WebhookDeliveryListParams{
				AccountID: p.account, WebhookID: at.ID, Statuses: statuses, BeforeID: p.after.Key, PageSize: p.queryLimit(),
			})
		},
		count: func(ctx context.Context) (int64, error) {
			return s.reads.WebhookDeliveryCount(ctx, db.WebhookDeliveryCountParams{AccountID: p.account, WebhookID: at.ID, Statuses: statuses})
		},
		item:     deliveryFrom,
		cursorOf: func(row db.WebhookDeliveryListRow) httpjson.Position { return httpjson.Position{Key: row.ID} },
	})
}

// getWebhookDelivery sends a delivery of the webhook in the path.
func (s *Server) getWebhookDelivery(c *gin.Context) error {
	if err := readParams(c).Err(); err != nil {
		return err
	}
	at, err := s.readWebhook(c)
	if err != nil {
		return err
	}
	id := c.Param("deliveryId")
	if !webhook.IsDeliveryID(id) {
		return errDeliveryNotFound
	}
	row, err := s.reads.WebhookDeliveryGet(c.Request.Context(), db.WebhookDeliveryGetParams{AccountID: caller(c).AccountID, WebhookID: at.ID, ID: id})
	if err != nil {
		return orNotFound(err, errDeliveryNotFound)
	}
	return httpjson.WriteResource(c.Writer, c.Request, deliveryFrom(db.WebhookDeliveryListRow(row)))
}

// retryWebhookDelivery makes a delivery due now, whatever its status.
func (s *Server) retryWebhookDelivery(c *gin.Context) error {
	if err := readParams(c).Err(); err != nil {
		return err
	}
	return s.accept(c, s.limits.locks, func(ctx context.Context, queries *db.Queries, at db.WebhookGetLockedRow) (any, error) {
		id := c.Param("deliveryId")
		if !webhook.IsDeliveryID(id) {
			return nil, errDeliveryNotFound
		}
		if err := queries.WebhookProbe(ctx, db.WebhookProbeParams{AccountID: caller(c).AccountID, ID: at.ID}); err != nil {
			return nil, err
		}
		row, err := queries.WebhookDeliveryRetry(ctx, db.WebhookDeliveryRetryParams{AccountID: caller(c).AccountID, WebhookID: at.ID, ID: id})
		return deliveryFrom(db.WebhookDeliveryListRow(row)), orNotFound(err, errDeliveryNotFound)
	})
}

// replay is the WebhookReplay schema of the spec.
type replay struct {
	Deliveries int64   `json:"deliveries"`
	Next       *string `json:"next,omitempty"`
}

// replayWebhook sends events again that a webhook missed while it was disabled. It costs more
// by the deliveries that it makes and by the events that it looks through.
func (s *Server) replayWebhook(c *gin.Context) error {
	in := s.decode(c)
	after := readEventID(in)
	types := in.Enums("types", eventTypes...)
	if err := in.Err(); err != nil {
		return err
	}
	cost := 0
	defer func() { s.limits.charge(caller(c), cost) }()
	return s.accept(c, s.limits.loads, func(ctx context.Context, queries *db.Queries, at db.WebhookGetLockedRow) (any, error) {
		r := newReplayer(queries, caller(c), at)
		start, err := r.start(ctx, after)
		if err != nil {
			return nil, err
		}
		cost = int(min(at.AfterSequence-start, int64(r.window)) / eventsPerToken)
		made, err := r.replay(ctx, start, r.both(types))
		cost = max(cost, int(made.Deliveries/replayedPerToken))
		return made, err
	})
}

// readEventID reads the id of an event in the feed from the field after.
func readEventID(in *input) *event.ID {
	text := in.Text("after", 1, maxEventIDLength)
	if text == nil {
		return nil
	}
	id, ok := event.ParseID(*text)
	if !ok {
		in.Reject("after", "invalid_format", "must be the id of an event, such as `evt_0000000000030000000004125f0c9a1e`.")
	}
	return &id
}

const maxEventIDLength = 64

// replayer replays the feed of an account to a locked webhook.
type replayer struct {
	queries    *db.Queries
	account    int64
	to         db.WebhookGetLockedRow
	window     int32
	maxBacklog int32
}

func newReplayer(queries *db.Queries, identity auth.Identity, to db.WebhookGetLockedRow) replayer {
	r := replayer{queries, identity.AccountID, to, replayWindow, maxBacklog}
	if identity.IsSandbox() {
		r.window, r.maxBacklog = sandboxReplayWindow, sandboxMaxBacklog
	}
	return r
}

// both returns the types that the webhook has and the request wants. A request without
// types wants all.
func (r replayer) both(wanted []string) []string {
	has := r.to.Types
	if slices.Contains(has, anyType) {
		has = eventTypes
	}
	if wanted == nil {
		return has
	}
	return slices.DeleteFunc(slices.Clone(has), func(name string) bool { return !slices.Contains(wanted, name) })
}

// start returns the number of the event after which a replay begins. If after is nil, the
// replay begins with the oldest event that is kept. The error is [errCursorExpired] or comes
// from the database.
func (r replayer) start(ctx context.Context, after *event.ID) (int64, error) {
	if after != nil {
		return after.Sequence, r.checkCursor(ctx, *after)
	}
	oldest, err := r.queries.EventOldest(ctx, r.account)
	if errors.Is(err, pgx.ErrNoRows) {
		return r.to.AfterSequence, nil
	}
	return oldest.Sequence - 1, err
}

// replay makes deliveries of the events after a number. It leaves out the events whose
// delivery is pending, and those that the worker has not dispatched yet, because the webhook
// gets them anyway. The error is [errTooManyDeliveries] or comes from the database.
func (r replayer) replay(ctx context.Context, after int64, types []string) (made replay, err error) {
	last := min(r.to.AfterSequence, after+int64(r.window))
	if last <= after {
		return made, nil
	}
	pending, err := r.pending(ctx, after, last)
	if err != nil {
		return made, err
	}
	rows, err := r.queries.ReplayEvents(ctx, db.ReplayEventsParams{
		AccountID: r.account, First: after, Last: last, Types: types, PageSize: r.window + 1,
	})
	if err != nil {
		return made, err
	}
	insert := db.ReplayInsertParams{AccountID: r.account, WebhookID: r.to.ID}
	for _, row := range rows {
		id := event.IDOf(r.account, row.Sequence, row.Nonce)
		if row.Sequence == last && last < r.to.AfterSequence {
			made.Next = new(id.String())
		}
		if row.Sequence == after || pending[row.Sequence] || !slices.Contains(types, row.Type) {
			continue
		}
		deliveryID, err := webhook.NewDeliveryID()
		if err != nil {
			return made, err
		}
		insert.Ids = append(insert.Ids, deliveryID)
		insert.EventIds = append(insert.EventIds, id.String())
		insert.Sequences = append(insert.Sequences, row.Sequence)
		insert.Types = append(insert.Types, row.Type)
	}
	made.Deliveries = int64(len(insert.Ids))
	if made.Deliveries == 0 {
		return made, nil
	}
	_, err = r.queries.ReplayInsert(ctx, insert)
	return made, err
}

// pending returns the numbers of the events in a range whose deliveries are pending. So a
// replay that is repeated adds nothing. The error is [errTooManyDeliveries] or comes from
// the database.
func (r replayer) pending(ctx context.Context, after, last int64) (map[int64]bool, error) {
	backlog, err := r.queries.ReplayBacklog(ctx, db.ReplayBacklogParams{AccountID: r.account, Most: r.maxBacklog + 1})
	switch {
	case err != nil:
		return nil, err
	case backlog > int64(r.maxBacklog):
		return nil, errTooManyDeliveries
	}
	sequences, err := r.queries.ReplayPending(ctx, db.ReplayPendingParams{
		AccountID: r.account, WebhookID: r.to.ID, AfterSequence: after, Last: &last, PageSize: r.window,
	})
	pending := make(map[int64]bool, len(sequences))
	for _, sequence := range sequences {
		pending[sequence] = true
	}
	return pending, err
}

// checkCursor returns [errCursorExpired] unless the feed has the event, or begins after it.
func (r replayer) checkCursor(ctx context.Context, after event.ID) error {
	expired := &feedQuery{account: r.account, after: &after}
	if after.Account != r.account {
		return cursorExpired(ctx, r.queries, expired)
	}
	if after.Sequence == 0 {
		oldest, err := r.queries.EventOldest(ctx, r.account)
		switch {
		case after.Nonce != 0, err == nil && oldest.Sequence > 1:
			return cursorExpired(ctx, r.queries, expired)
		case errors.Is(err, pgx.ErrNoRows):
			return nil
		default:
			return err
		}
	}
	rows, err := r.queries.ReplayEvents(ctx, db.ReplayEventsParams{AccountID: r.account, First: after.Sequence, Last: after.Sequence, PageSize: 1})
	switch {
	case err != nil:
		return err
	case len(rows) == 0, rows[0].Nonce != int64(after.Nonce):
		return cursorExpired(ctx, r.queries, expired)
	default:
		return nil
	}
}

package api

import (
	"context"
	"errors"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/go-json-experiment/json/jsontext"

	"petstore/db"
	"petstore/internal/event"
	"petstore/internal/feed"
	"petstore/internal/gate"
	"petstore/internal/httpjson"
	"petstore/internal/webhook"
)

// replayedPerToken is the number of deliveries that count as one request. A write makes as many
// for the webhooks of an account.
const replayedPerToken = webhook.MaxWebhooks

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
	p.path = webhooksPath + "/" + c.Param("webhookId") // so that a cursor is valid for this webhook only
	if err := s.applyCursor(c.Request.Context(), p); err != nil {
		return err
	}
	at, err := s.readWebhook(c)
	if err != nil {
		return err
	}
	return writePage(s, c, params, p, list[db.WebhookDeliveryListRow, delivery]{
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
	at, err := s.readWebhook(c)
	if err != nil {
		return err
	}
	id := c.Param("deliveryId")
	if !webhook.IsDeliveryID(id) {
		return errDeliveryNotFound
	}
	row, err := s.reads.WebhookDeliveryGet(c.Request.Context(), db.WebhookDeliveryGetParams{AccountID: gate.Caller(c).AccountID, WebhookID: at.ID, ID: id})
	if err != nil {
		return orNotFound(err, errDeliveryNotFound)
	}
	return writeResource(c, deliveryFrom(db.WebhookDeliveryListRow(row)))
}

// retryWebhookDelivery makes a delivery due now, whatever its status.
func (s *Server) retryWebhookDelivery(c *gin.Context) error {
	return s.accept(c, s.gate.Limits.Locks, func(ctx context.Context, queries *db.Queries, at db.WebhookGetLockedRow) (any, error) {
		id := c.Param("deliveryId")
		if !webhook.IsDeliveryID(id) {
			return nil, errDeliveryNotFound
		}
		if err := queries.WebhookRetryNow(ctx, db.WebhookRetryNowParams{AccountID: gate.Caller(c).AccountID, ID: at.ID}); err != nil {
			return nil, err
		}
		row, err := queries.WebhookDeliveryRetry(ctx, db.WebhookDeliveryRetryParams{AccountID: gate.Caller(c).AccountID, WebhookID: at.ID, ID: id})
		if err == nil && at.Status != webhook.Enabled {
			err = errWebhookDisabled
		}
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
	defer func() { s.gate.Charge(c, cost) }()
	return s.accept(c, s.gate.Limits.Loads, func(ctx context.Context, queries *db.Queries, at db.WebhookGetLockedRow) (any, error) {
		r := webhook.NewReplay(queries, gate.Caller(c).AccountID, gate.Caller(c).IsSandbox(), at)
		start, err := r.Start(ctx, after)
		if _, expired := errors.AsType[*feed.ExpiredError](err); expired {
			return nil, errReplayExpired
		}
		if err != nil {
			return nil, err
		}
		cost = int(r.Looked(start) / rowsPerToken)
		made, next, err := r.Run(ctx, start, types)
		cost = max(cost, int(made/replayedPerToken))
		if err != nil {
			return nil, err
		}
		answer := replay{Deliveries: made}
		if next != nil {
			answer.Next = new(next.String())
		}
		return answer, nil
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

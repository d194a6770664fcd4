package api

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"slices"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/go-json-experiment/json/jsontext"

	"petstore/db"
	"petstore/internal/admission"
	"petstore/internal/auth"
	"petstore/internal/egress"
	"petstore/internal/gate"
	"petstore/internal/httpjson"
	"petstore/internal/webhook"
)

const maxWebhookDescriptionLength = 500 // openapi.yaml has the same

// apiWebhook is the Webhook schema of the spec.
type apiWebhook struct {
	ID             string    `json:"id"`
	URL            string    `json:"url"`
	Types          []string  `json:"types"`
	Description    *string   `json:"description,omitzero"`
	Status         string    `json:"status"`
	DisabledReason *string   `json:"disabledReason,omitempty"`
	CreatedAt      time.Time `json:"createdAt"`
}

// webhookWithSecret is the WebhookWithSecret schema of the spec.
type webhookWithSecret struct {
	apiWebhook

	Secret string `json:"secret"`
}

func webhookFrom(row db.WebhookListRow) apiWebhook {
	return apiWebhook{
		ID: row.ID, URL: row.URL, Types: row.Types, Description: row.Description, Status: row.Status,
		DisabledReason: row.DisabledReason, CreatedAt: row.CreatedAt.UTC(),
	}
}

// ofLocked returns the part of a locked webhook that clients see.
func ofLocked(row db.WebhookGetLockedRow) apiWebhook {
	return webhookFrom(db.WebhookListRow{
		ID: row.ID, URL: row.URL, Types: row.Types, Description: row.Description, Status: row.Status,
		DisabledReason: row.DisabledReason, CreatedAt: row.CreatedAt,
	})
}

// listWebhooks lists the webhooks of the account by id.
func (s *Server) listWebhooks(c *gin.Context) error {
	params := readParams(c)
	p := newPage(c, params, defaultLimit, byIDOnly)
	return writePage(s, c, params, p, list[db.WebhookListRow, apiWebhook]{
		find: func(ctx context.Context) ([]db.WebhookListRow, error) {
			return s.reads.WebhookList(ctx, db.WebhookListParams{AccountID: p.account, AfterID: p.after.Key, PageSize: p.queryLimit()})
		},
		count: func(ctx context.Context) (int64, error) {
			count, err := s.reads.WebhookCount(ctx, p.account)
			return count.Live, err
		},
		item:     webhookFrom,
		cursorOf: func(row db.WebhookListRow) httpjson.Position { return httpjson.Position{Key: row.ID} },
	})
}

func (s *Server) getWebhook(c *gin.Context) error {
	row, err := s.readWebhook(c)
	if err != nil {
		return err
	}
	return writeResource(c, webhookFrom(db.WebhookListRow(row)))
}

// readWebhook returns the webhook in the path. The error is [errWebhookNotFound] or comes
// from the database.
func (s *Server) readWebhook(c *gin.Context) (db.WebhookGetRow, error) {
	id := c.Param("webhookId")
	if !webhook.IsID(id) {
		return db.WebhookGetRow{}, errWebhookNotFound
	}
	row, err := s.reads.WebhookGet(c.Request.Context(), db.WebhookGetParams{AccountID: gate.Caller(c).AccountID, ID: id})
	return row, orNotFound(err, errWebhookNotFound)
}

// endpointOf returns the webhook in the path.
func endpointOf(c *gin.Context) webhook.Endpoint {
	return webhook.Endpoint{AccountID: gate.Caller(c).AccountID, ID: c.Param("webhookId")}
}

// createWebhook creates a webhook with a secret. It receives the events from then on.
func (s *Server) createWebhook(c *gin.Context) error {
	in := s.decode(c, secret, required("url", "types"), readOnly("id", "status", "disabledReason", "createdAt", "secret"))
	description := in.Text("description", 0, maxWebhookDescriptionLength)
	fields, err := s.readWebhookFields(in)
	if err != nil {
		return err
	}
	fields.Description = description
	made, err := transact(s, c, s.gate.Limits.Locks, func(ctx context.Context, queries *db.Queries) (webhookWithSecret, error) {
		row, secret, err := s.options.Vault.Create(ctx, queries, gate.Caller(c).AccountID, fields)
		return webhookWithSecret{webhookFrom(db.WebhookListRow(row)), secret.Reveal()}, err
	})
	if err != nil {
		return err
	}
	gate.Record(c, "webhook_created", slog.String("target_webhook_id", made.ID))
	return writeNew(c, webhooksPath+"/"+made.ID, made)
}

// readWebhookFields reads the fields that a new webhook and a change have alike, after the
// others. The error is a violation or [errURLNotAllowed].
func (s *Server) readWebhookFields(in *input) (fields webhook.Fields, err error) {
	fields.URL = in.Text("url", 1, egress.MaxURLLength)
	fields.Types = in.Enums("types", append([]string{webhook.AnyType}, eventTypes...)...)
	if len(fields.Types) > 1 && slices.Contains(fields.Types, webhook.AnyType) {
		in.Reject("types", "not_allowed", "must have `*` alone, or types without it.")
	}
	if fields.URL == nil {
		return fields, in.Err()
	}
	return fields, s.checkWebhookURL(in, *fields.URL)
}

// checkWebhookURL returns what is wrong with a body whose other fields are read. It is
// [errURLNotAllowed] if the only violation is a URL that is well-formed.
func (s *Server) checkWebhookURL(in *input, url string) error {
	others := in.Err()
	refused, is := errors.AsType[*egress.RefusedError](s.options.Egress.Check(url))
	switch {
	case !is:
		return others
	case refused.Malformed:
		in.Reject("url", "invalid_format", refused.Reason)
	default:
		in.Reject("url", "not_allowed", refused.Reason)
	}
	err := in.Err()
	if found, is := errors.AsType[*httpjson.Error](err); is && others == nil && !refused.Malformed {
		return errURLNotAllowed.WithMessage("`url` " + refused.Reason).WithViolations(found.Violations)
	}
	return err
}

// updateWebhook changes a webhook. One that is enabled again receives the events from then
// on.
func (s *Server) updateWebhook(c *gin.Context) error {
	in := s.decode(c, readOnly("id", "disabledReason", "createdAt", "secret"))
	status := in.Enum("status", webhook.Enabled, webhook.Disabled)
	description, cleared := in.NullableText("description", maxWebhookDescriptionLength)
	fields, err := s.readWebhookFields(in)
	if err != nil {
		return err
	}
	fields.Status, fields.Description, fields.ClearsDescription = status, description, cleared
	var changed bool
	made, err := transactTagged(s, c, s.gate.Limits.Locks, func(ctx context.Context, queries *db.Queries) (apiWebhook, error) {
		current, err := webhook.Lock(ctx, queries, endpointOf(c))
		if err != nil {
			return apiWebhook{}, err
		}
		if err := checkTag(c.Request, ofLocked(current)); err != nil {
			return apiWebhook{}, err
		}
		row, err := webhook.Update(ctx, queries, gate.Caller(c).AccountID, current, fields)
		made := webhookFrom(db.WebhookListRow(row))
		changed = made.URL != current.URL || made.Status != current.Status
		return made, err
	})
	if err != nil {
		return err
	}
	if changed {
		gate.Record(c, "webhook_updated", slog.String("target_webhook_id", made.ID))
	}
	s.options.Deliver(gate.Caller(c).AccountID, made.ID) // deliveries can be due since it was disabled
	body, err := httpjson.Encode(made)
	if err != nil {
		return err
	}
	httpjson.SendTagged(c.Writer, http.StatusOK, body)
	return nil
}

// deleteWebhook deletes a webhook. The sweep deletes its deliveries later.
func (s *Server) deleteWebhook(c *gin.Context) error {
	id, err := transactTagged(s, c, s.gate.Limits.Locks, func(ctx context.Context, queries *db.Queries) (string, error) {
		current, err := webhook.Lock(ctx, queries, endpointOf(c))
		if err != nil {
			return "", err
		}
		if err := checkTag(c.Request, ofLocked(current)); err != nil {
			return "", err
		}
		return current.ID, queries.WebhookDelete(ctx, db.WebhookDeleteParams{AccountID: gate.Caller(c).AccountID, ID: current.ID})
	})
	if err != nil {
		return s.confirmGone(c, err, webhook.ErrNotFound)
	}
	gate.Record(c, "webhook_deleted", slog.String("target_webhook_id", id))
	c.Status(http.StatusNoContent)
	return nil
}

// rotateWebhook gives a webhook a new secret. The old one signs too for the grace.
func (s *Server) rotateWebhook(c *gin.Context) error {
	in := s.decode(c, secret)
	grace := in.grace()
	if err := in.Err(); err != nil {
		return err
	}
	made, err := transact(s, c, s.gate.Limits.Locks, func(ctx context.Context, queries *db.Queries) (webhookWithSecret, error) {
		row, secret, err := s.options.Vault.Rotate(ctx, queries, endpointOf(c), grace)
		return webhookWithSecret{webhookFrom(db.WebhookListRow(row)), secret.Reveal()}, err
	})
	if err != nil {
		return err
	}
	gate.Record(c, "webhook_rotated", slog.String("target_webhook_id", made.ID))
	return writeNew(c, webhooksPath+"/"+made.ID, made)
}

// testWebhook sends a webhook.test event to one webhook. The event is in no feed.
func (s *Server) testWebhook(c *gin.Context) error {
	return s.accept(c, s.gate.Limits.Locks, func(ctx context.Context, queries *db.Queries, at db.WebhookGetLockedRow) (any, error) {
		if err := queries.WebhookRetryNow(ctx, db.WebhookRetryNowParams{AccountID: gate.Caller(c).AccountID, ID: at.ID}); err != nil {
			return nil, err
		}
		return s.createTest(ctx, queries, gate.Caller(c), at.ID, webhook.TestType)
	})
}

// createTest creates a delivery of a new webhook.test event. Its type is that or the one of a
// probe.
func (s *Server) createTest(ctx context.Context, queries *db.Queries, caller auth.Identity, webhookID, deliveryType string) (made delivery, err error) {
	eventID := webhook.NewTestID()
	body, err := httpjson.Encode(apiEvent{
		ID: eventID, Source: sourceOf(caller), Type: webhook.TestType, Timestamp: s.options.Now().UTC().Truncate(time.Microsecond),
		Subject: webhooksPath + "/" + webhookID, Data: jsontext.Value("{}"),
	})
	if err != nil {
		return made, err
	}
	row, err := queries.WebhookDeliveryCreateTest(ctx, db.WebhookDeliveryCreateTestParams{
		AccountID: caller.AccountID, ID: webhook.NewDeliveryID(), WebhookID: webhookID, EventID: eventID, Type: deliveryType, Body: string(body),
	})
	return deliveryFrom(db.WebhookDeliveryListRow(row)), err
}

// probes is the WebhookProbes schema of the spec.
type probes struct {
	Deliveries []delivery `json:"deliveries"`
}

// probeWebhook sends events to a webhook that it must refuse, and one twice.
func (s *Server) probeWebhook(c *gin.Context) error {
	return s.accept(c, s.gate.Limits.Locks, func(ctx context.Context, queries *db.Queries, at db.WebhookGetLockedRow) (any, error) {
		var made probes
		for _, probe := range webhook.Probes {
			one, err := s.createTest(ctx, queries, gate.Caller(c), at.ID, probe)
			if err != nil {
				return nil, err
			}
			made.Deliveries = append(made.Deliveries, one)
		}
		return made, queries.WebhookRetryNow(ctx, db.WebhookRetryNowParams{AccountID: gate.Caller(c).AccountID, ID: at.ID})
	})
}

// accept runs a change that makes deliveries to the webhook in the path due, and sends its
// result with 202. Location leads to the delivery, or to all deliveries of the webhook. The
// change counts in a pool. The webhook must be enabled. If the path names a delivery, the change
// checks that after the delivery. The worker starts at once.
func (s *Server) accept(c *gin.Context, pool *admission.Pool, change func(context.Context, *db.Queries, db.WebhookGetLockedRow) (any, error)) error {
	result, err := transact(s, c, pool, func(ctx context.Context, queries *db.Queries) (any, error) {
		at, err := webhook.Lock(ctx, queries, endpointOf(c))
		switch {
		case err != nil:
			return nil, err
		case at.Status != webhook.Enabled && c.Param("deliveryId") == "":
			return nil, errWebhookDisabled
		}
		return change(ctx, queries, at)
	})
	if err != nil {
		return err
	}
	id := c.Param("webhookId")
	s.options.Deliver(gate.Caller(c).AccountID, id)
	body, err := httpjson.Encode(result)
	if err != nil {
		return err
	}
	location := webhooksPath + "/" + id + "/deliveries"
	if one, ok := result.(delivery); ok {
		location += "/" + one.ID
	}
	c.Header("Location", location)
	c.Header("Cache-Control", "private, no-cache")
	httpjson.Send(c.Writer, http.StatusAccepted, httpjson.ContentType, body)
	return nil
}

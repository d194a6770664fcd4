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
	"petstore/internal/httpjson"
	"petstore/internal/standardwebhooks"
	"petstore/internal/webhook"
)

const (
	webhooksPath   = "/webhooks"
	deliveriesPath = webhooksPath + "/{webhookId}/deliveries"

	maxWebhooks                 = 20  // of an account
	maxWebhookDescriptionLength = 500 // openapi.yaml has the same
)

// anyType in the types of a webhook means all types.
const anyType = "*"

// The statuses of a webhook, and why one that a request has disabled is disabled.
const (
	webhookEnabled  = "enabled"
	webhookDisabled = "disabled"
	disabledByHand  = "manual"
)

// apiWebhook is the Webhook schema of the spec.
type apiWebhook struct {
	ID             string    `json:"id"`
	URL            string    `json:"url"`
	Types          []string  `json:"types"`
	Description    *string   `json:"description,omitempty"`
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
	if err := params.Err(); err != nil {
		return err
	}
	return writePage(s, c, p, list[db.WebhookListRow, apiWebhook]{
		find: func(ctx context.Context) ([]db.WebhookListRow, error) {
			return s.reads.WebhookList(ctx, db.WebhookListParams{AccountID: p.account, AfterID: p.after.Key, PageSize: p.queryLimit()})
		},
		count: func(ctx context.Context) (int64, error) {
			return s.reads.WebhookCount(ctx, p.account)
		},
		item:     webhookFrom,
		cursorOf: func(row db.WebhookListRow) httpjson.Position { return httpjson.Position{Key: row.ID} },
	})
}

func (s *Server) getWebhook(c *gin.Context) error {
	if err := readParams(c).Err(); err != nil {
		return err
	}
	row, err := s.readWebhook(c)
	if err != nil {
		return err
	}
	return httpjson.WriteResource(c.Writer, c.Request, webhookFrom(db.WebhookListRow(row)))
}

// readWebhook returns the webhook in the path. The error is [errWebhookNotFound] or comes
// from the database.
func (s *Server) readWebhook(c *gin.Context) (db.WebhookGetRow, error) {
	id := c.Param("webhookId")
	if !webhook.IsID(id) {
		return db.WebhookGetRow{}, errWebhookNotFound
	}
	row, err := s.reads.WebhookGet(c.Request.Context(), db.WebhookGetParams{AccountID: caller(c).AccountID, ID: id})
	return row, orNotFound(err, errWebhookNotFound)
}

// lockWebhook returns the webhook in the path, and locks it until the transaction ends.
func lockWebhook(ctx context.Context, c *gin.Context, queries *db.Queries) (db.WebhookGetLockedRow, error) {
	id := c.Param("webhookId")
	if !webhook.IsID(id) {
		return db.WebhookGetLockedRow{}, errWebhookNotFound
	}
	row, err := queries.WebhookGetLocked(ctx, db.WebhookGetLockedParams{AccountID: caller(c).AccountID, ID: id})
	return row, orNotFound(err, errWebhookNotFound)
}

// createWebhook creates a webhook with a secret. It receives the events from then on.
func (s *Server) createWebhook(c *gin.Context) error {
	in := s.decode(c, secret, required("url", "types"), readOnly("id", "status", "disabledReason", "createdAt", "secret"))
	description := in.Text("description", 0, maxWebhookDescriptionLength)
	fields, err := s.readWebhookFields(in)
	if err != nil {
		return err
	}
	account, made := caller(c).AccountID, standardwebhooks.NewSecret()
	id, err := webhook.NewID()
	if err != nil {
		return err
	}
	row, err := transact(s, c, func(ctx context.Context, queries *db.Queries) (db.WebhookCreateRow, error) {
		if err := queries.WebhooksLock(ctx, account); err != nil {
			return db.WebhookCreateRow{}, err
		}
		switch count, err := queries.WebhookCount(ctx, account); {
		case err != nil:
			return db.WebhookCreateRow{}, err
		case count >= maxWebhooks:
			return db.WebhookCreateRow{}, errTooManyWebhooks
		}
		row, err := queries.WebhookCreate(ctx, db.WebhookCreateParams{
			AccountID: account, ID: id, URL: *fields.url, Types: fields.types, Description: description,
			Secret: s.vault.Seal(webhook.Endpoint{AccountID: account, ID: id}, made),
		})
		return row, orNotFound(err, errInvalidAPIKey) // the account is gone
	})
	if err != nil {
		return err
	}
	recordWebhookEvent(c, eventWebhookCreated, id)
	return writeSecret(c, webhooksPath+"/"+id, webhookWithSecret{webhookFrom(db.WebhookListRow(row)), made.Reveal()})
}

// webhookFields are fields of a webhook in a body.
type webhookFields struct {
	url   *string
	types []string
}

// readWebhookFields reads the fields that a new webhook and a change have alike, after the
// others. The error is a violation or [errURLNotAllowed].
func (s *Server) readWebhookFields(in *input) (fields webhookFields, err error) {
	fields.url = in.Text("url", 1, egress.MaxURLLength)
	fields.types = in.Enums("types", append([]string{anyType}, eventTypes...)...)
	if len(fields.types) > 1 && slices.Contains(fields.types, anyType) {
		in.Reject("types", "not_allowed", "must have `*` alone, or types without it.")
	}
	if fields.url == nil {
		return fields, in.Err()
	}
	return fields, s.checkWebhookURL(in, *fields.url)
}

// checkWebhookURL returns what is wrong with a body whose other fields are read. It is
// [errURLNotAllowed] if the only violation is a URL that is well-formed.
func (s *Server) checkWebhookURL(in *input, url string) error {
	others := in.Err()
	refused, is := errors.AsType[*egress.RefusedError](s.egress.Check(url))
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
	status := in.Enum("status", webhookEnabled, webhookDisabled)
	description, cleared := in.NullableText("description", maxWebhookDescriptionLength)
	fields, err := s.readWebhookFields(in)
	if err != nil {
		return err
	}
	var changed bool
	made, err := transactTagged(s, c, func(ctx context.Context, queries *db.Queries) (apiWebhook, error) {
		current, err := lockWebhook(ctx, c, queries)
		if err != nil {
			return apiWebhook{}, err
		}
		if err := checkTag(c.Request, ofLocked(current)); err != nil {
			return apiWebhook{}, err
		}
		params := updateOfWebhook(caller(c).AccountID, current, fields, status)
		if description != nil || cleared {
			params.Description = description
		}
		row, err := queries.WebhookUpdate(ctx, params)
		made := webhookFrom(db.WebhookListRow(row))
		changed = made.URL != current.URL || made.Status != current.Status
		return made, err
	})
	if err != nil {
		return err
	}
	if changed {
		recordWebhookEvent(c, eventWebhookUpdated, made.ID)
	}
	s.deliver(caller(c).AccountID, made.ID) // deliveries can be due since it was disabled
	body, err := httpjson.Encode(made)
	if err != nil {
		return err
	}
	httpjson.SendTagged(c.Writer, http.StatusOK, body)
	return nil
}

// updateOfWebhook returns all values of a webhook after a change, with its old description.
func updateOfWebhook(account int64, current db.WebhookGetLockedRow, fields webhookFields, status *string) db.WebhookUpdateParams {
	params := db.WebhookUpdateParams{
		AccountID: account, ID: current.ID, URL: current.URL, Types: current.Types, Description: current.Description,
		Status: current.Status, DisabledReason: current.DisabledReason,
	}
	if fields.url != nil {
		params.URL = *fields.url
	}
	if fields.types != nil {
		params.Types = fields.types
	}
	switch {
	case status == nil || *status == current.Status:
	case *status == webhookEnabled:
		params.Status, params.DisabledReason = webhookEnabled, nil
	default:
		params.Status, params.DisabledReason = webhookDisabled, new(disabledByHand)
	}
	return params
}

// deleteWebhook deletes a webhook. The sweep deletes its deliveries later.
func (s *Server) deleteWebhook(c *gin.Context) error {
	if err := readParams(c).Err(); err != nil {
		return err
	}
	id, err := transactTagged(s, c, func(ctx context.Context, queries *db.Queries) (string, error) {
		current, err := lockWebhook(ctx, c, queries)
		if err != nil {
			return "", err
		}
		if err := checkTag(c.Request, ofLocked(current)); err != nil {
			return "", err
		}
		return current.ID, queries.WebhookDelete(ctx, db.WebhookDeleteParams{AccountID: caller(c).AccountID, ID: current.ID})
	})
	if err != nil {
		return err
	}
	recordWebhookEvent(c, eventWebhookDeleted, id)
	c.Status(http.StatusNoContent)
	return nil
}

// rotateWebhook gives a webhook a new secret. The old one signs too for the grace.
func (s *Server) rotateWebhook(c *gin.Context) error {
	in := s.decode(c, secret)
	seconds := in.Integer("graceSeconds", 0, int64(auth.MaxGrace/time.Second))
	if err := in.Err(); err != nil {
		return err
	}
	grace := int64(0)
	if seconds != nil {
		grace = *seconds
	}
	account, id, made := caller(c).AccountID, c.Param("webhookId"), standardwebhooks.NewSecret()
	row, err := transact(s, c, func(ctx context.Context, queries *db.Queries) (db.WebhookRotateRow, error) {
		if !webhook.IsID(id) {
			return db.WebhookRotateRow{}, errWebhookNotFound
		}
		row, err := queries.WebhookRotate(ctx, db.WebhookRotateParams{
			AccountID: account, ID: id, GraceSeconds: grace, Secret: s.vault.Seal(webhook.Endpoint{AccountID: account, ID: id}, made),
		})
		return row, orNotFound(err, errWebhookNotFound)
	})
	if err != nil {
		return err
	}
	recordWebhookEvent(c, eventWebhookRotated, id)
	return writeSecret(c, webhooksPath+"/"+id, webhookWithSecret{webhookFrom(db.WebhookListRow(row)), made.Reveal()})
}

// testWebhook sends a webhook.test event to one webhook. The event is in no feed.
func (s *Server) testWebhook(c *gin.Context) error {
	if err := readParams(c).Err(); err != nil {
		return err
	}
	eventID, err := webhook.NewTestID()
	if err != nil {
		return err
	}
	deliveryID, err := webhook.NewDeliveryID()
	if err != nil {
		return err
	}
	body, err := httpjson.Encode(apiEvent{
		ID: eventID, Source: sourceOf(caller(c)), Type: webhook.TestType, Timestamp: s.now().UTC().Truncate(time.Microsecond),
		Subject: webhooksPath + "/" + c.Param("webhookId"), Data: jsontext.Value("{}"),
	})
	if err != nil {
		return err
	}
	return s.accept(c, s.limits.locks, func(ctx context.Context, queries *db.Queries, at db.WebhookGetLockedRow) (any, error) {
		if err := queries.WebhookProbe(ctx, db.WebhookProbeParams{AccountID: caller(c).AccountID, ID: at.ID}); err != nil {
			return nil, err
		}
		row, err := queries.WebhookDeliveryCreateTest(ctx, db.WebhookDeliveryCreateTestParams{
			AccountID: caller(c).AccountID, ID: deliveryID, WebhookID: at.ID, EventID: eventID, Type: webhook.TestType, Body: string(body),
		})
		return deliveryFrom(db.WebhookDeliveryListRow(row)), err
	})
}

// accept runs a change that makes deliveries to the webhook in the path due, and sends its
// result with 202. Location leads to the delivery, or to all deliveries of the webhook. The
// change counts in a pool. The webhook must be enabled. The worker starts at once.
func (s *Server) accept(c *gin.Context, pool *admission.Pool[int64], change func(context.Context, *db.Queries, db.WebhookGetLockedRow) (any, error)) error {
	if err := checkUntagged(c.Request); err != nil {
		return err
	}
	result, err := transactIn(s, c, pool, func(ctx context.Context, queries *db.Queries) (any, error) {
		at, err := lockWebhook(ctx, c, queries)
		switch {
		case err != nil:
			return nil, err
		case at.Status != webhookEnabled:
			return nil, errWebhookDisabled
		}
		return change(ctx, queries, at)
	})
	if err != nil {
		return err
	}
	id := c.Param("webhookId")
	s.deliver(caller(c).AccountID, id)
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

const sweepWebhooksInterval = 10 * time.Minute

// SweepWebhooks deletes old deliveries and deleted webhooks, and seals secrets with a new key,
// every ten minutes, until the context ends.
func (s *Server) SweepWebhooks(ctx context.Context) {
	for ticker := time.NewTicker(sweepWebhooksInterval); ; {
		if err := webhook.Sweep(ctx, s.db, s.vault); err != nil && ctx.Err() == nil && !s.schemaIsBehind(ctx) {
			s.log.LogAttrs(ctx, slog.LevelWarn, "could not look after all webhooks", slog.Any("error", err))
		}
		select {
		case <-ctx.Done():
			ticker.Stop()
			return
		case <-ticker.C:
		}
	}
}

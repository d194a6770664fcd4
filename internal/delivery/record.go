package delivery

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"petstore/db"
	"petstore/internal/event"
	"petstore/internal/httpjson"
)

const (
	messageQueued = string(event.MessageQueued)
	messagesPath  = "/messages/"

	// recordPause is the time between two tries to record results.
	recordPause = 200 * time.Millisecond
)

// attempted is an element of webhook_deliveries.attempts.
type attempted struct {
	At         time.Time `json:"at"`
	DurationMs int64     `json:"durationMs"`
	HTTPStatus int       `json:"httpStatus,omitzero"`
	Error      string    `json:"error,omitzero"`
}

// record records the results of attempts. It tries again until it succeeds or ctx ends,
// because the deliveries whose results are lost are sent again.
func (d *drain) record(ctx context.Context, results []result) error {
	for {
		err := d.change(ctx, d.AccountID, func(ctx context.Context, queries *db.Queries) ([]event.Event, error) {
			return d.recordOnce(ctx, queries, results)
		})
		switch {
		case err == nil:
			return nil
		case ctx.Err() != nil:
			return fmt.Errorf("delivery: recording attempts: %w", err)
		}
		d.warn(ctx, "could not record the attempts of deliveries; trying again", err)
		pause(ctx, recordPause)
	}
}

// recordOnce records results and what follows from them: the health of the webhook, the
// status of messages. It returns the events of that.
func (d *drain) recordOnce(ctx context.Context, queries *db.Queries, results []result) ([]event.Event, error) {
	webhook, err := queries.WebhookLock(ctx, db.WebhookLockParams{AccountID: d.AccountID, ID: d.WebhookID})
	if errors.Is(err, pgx.ErrNoRows) {
		d.stopped.Store(true)
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	params := db.DeliveriesRecordParams{AccountID: d.AccountID, Never: never}
	messages := map[string]int64{}
	for _, r := range results {
		attempt, err := httpjson.Encode(attempted{r.at.UTC().Truncate(time.Microsecond), r.took.Milliseconds(), r.httpStatus, r.problem})
		if err != nil {
			return nil, err
		}
		params.Ids = append(params.Ids, r.id)
		params.Attempts = append(params.Attempts, string(attempt))
		params.Statuses = append(params.Statuses, r.status())
		params.NextAts = append(params.NextAts, r.next(webhook.Now))
		params.Befores = append(params.Befores, int32(r.attempts)) //nolint:gosec // at most maxAttempts, or those by request
		if id, ok := strings.CutPrefix(r.subject, messagesPath); ok && r.isFinal() && r.eventType == messageQueued {
			messages[id] = r.sequence
		}
	}
	if err := queries.DeliveriesRecord(ctx, params); err != nil {
		return nil, err
	}
	disabled, err := d.recordHealth(ctx, queries, webhook, results)
	if err != nil {
		return nil, err
	}
	events, err := settleMessages(ctx, queries, d.AccountID, messages, false)
	return append(events, disabled...), err
}

// recordHealth notes whether the webhook fails or is slow, and disables it when it is gone or
// has failed for 5 days. It returns the event of that.
func (d *drain) recordHealth(ctx context.Context, queries *db.Queries, webhook db.WebhookLockRow, results []result) ([]event.Event, error) {
	if webhook.Status != "enabled" {
		d.stopped.Store(true)
		return nil, nil
	}
	succeeded, failed, isSlow, reason := false, false, false, ""
	for _, r := range results {
		isSlow = isSlow || r.took > slowAfter
		switch {
		case r.isGone():
			reason = "gone"
		case r.isSuccess():
			succeeded = true
		case r.body != nil:
			failed = true
		}
	}
	failed = failed && !succeeded
	if isNewlySlow := isSlow && !webhook.IsKnownSlow; failed || succeeded && webhook.IsFailing || isNewlySlow {
		health := db.WebhookHealthParams{AccountID: d.AccountID, ID: d.WebhookID, Failed: failed, Succeeded: succeeded, At: webhook.Now, Lately: webhook.Now.Add(-48 * time.Hour)}
		if isSlow {
			until := webhook.Now.Add(slowFor)
			health.SlowUntil = &until
		}
		if err := queries.WebhookHealth(ctx, health); err != nil {
			return nil, err
		}
	}
	if reason == "" && failed && webhook.IsGivenUp {
		reason = "failing"
	}
	if reason == "" {
		return nil, nil
	}
	return d.disable(ctx, queries, reason)
}

// disable disables the webhook, and returns the event of that.
func (d *drain) disable(ctx context.Context, queries *db.Queries, reason string) ([]event.Event, error) {
	d.stopped.Store(true)
	if err := queries.WebhookDisable(ctx, db.WebhookDisableParams{AccountID: d.AccountID, ID: d.WebhookID, Reason: &reason}); err != nil {
		return nil, err
	}
	data, err := d.options.Disabled(ctx, queries, d.AccountID, d.WebhookID)
	if err != nil {
		return nil, err
	}
	return []event.Event{{Type: event.WebhookDisabled, Subject: "/webhooks/" + d.WebhookID, Data: data}}, nil
}

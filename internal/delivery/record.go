package delivery

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"petstore/db"
	"petstore/internal/event"
	"petstore/internal/httpjson"
)

const (
	// retryPause is the time between two tries to record results. It doubles each time, up to
	// maxRetryPause.
	retryPause    = 200 * time.Millisecond
	maxRetryPause = 2 * time.Second
	// slowAfter is the time of a request after which a webhook counts as slow, for slowFor.
	slowAfter = 500 * time.Millisecond
	slowFor   = 10 * time.Minute
	// maxFailures is the number of failed attempts in a row after which a webhook pauses: at
	// first for minPause, and then twice as long each time, up to maxPause. The query
	// WebhookRetryNow has the same number.
	maxFailures = 10
	minPause    = time.Second
	maxPause    = time.Minute
	// givenUpAfter is how long a webhook fails until it is disabled. Its last failure is not
	// older than quietAfter. Attempts of a delivery are at most a day apart. So after a time
	// without events, the next event has its ten attempts.
	givenUpAfter = 5 * 24 * time.Hour
	quietAfter   = 2 * 24 * time.Hour
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
	err := d.persist(ctx, "could not record the attempts of deliveries; trying again", func() error {
		return d.change(ctx, d.payer, d.AccountID, func(ctx context.Context, queries *db.Queries) ([]event.Event, error) {
			return d.recordOnce(ctx, queries, results)
		})
	})
	if err != nil {
		return fmt.Errorf("delivery: recording attempts: %w", err)
	}
	return nil
}

// recordOnce records results and what follows from them: the health of the webhook, the
// status of messages. It returns the events about both.
func (d *drain) recordOnce(ctx context.Context, queries *db.Queries, results []result) ([]event.Event, error) {
	webhook, err := queries.WebhookLock(ctx, db.WebhookLockParams{AccountID: d.AccountID, ID: d.WebhookID})
	if errors.Is(err, pgx.ErrNoRows) || err == nil && webhook.Lease != d.lease {
		d.stop() // another process delivers, and sends these deliveries again
		if err == nil {
			d.log.LogAttrs(ctx, slog.LevelWarn, "another process has taken over a webhook, and sends deliveries again", slog.Int("deliveries", len(results)))
		}
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	if !d.failedAt.IsZero() && webhook.Failures < maxFailures {
		return nil, nil // a request has changed the webhook since then, so its old deliveries get their attempts
	}
	sent := len(results)
	results = slices.DeleteFunc(slices.Clone(results), func(r result) bool { return r.url != "" && r.url != webhook.URL && !r.isSuccess() })
	if len(results) < sent {
		d.stop() // these deliveries are still due, and the new URL gets them first in the next turn
	}
	if len(results) == 0 {
		return nil, nil
	}
	params := db.DeliveriesRecordParams{AccountID: d.AccountID, Never: never}
	var messages []string
	for _, r := range results {
		attempt, err := httpjson.Encode(attempted{r.at.UTC().Truncate(time.Microsecond), r.milliseconds(), r.httpStatus, r.problem})
		if err != nil {
			return nil, err
		}
		params.Ids = append(params.Ids, r.id)
		params.Attempts = append(params.Attempts, string(attempt))
		params.Statuses = append(params.Statuses, r.status())
		params.NextAts = append(params.NextAts, r.next(webhook.Now))
		params.DueAts = append(params.DueAts, r.position.at)
		params.Befores = append(params.Befores, int32(r.attempts)) //nolint:gosec // at most maxAttempts, or those by request
		if id, ok := strings.CutPrefix(r.subject, messagesPath); ok && r.isFinal() && r.eventType == messageQueued {
			messages = append(messages, id)
		}
	}
	recorded, err := queries.DeliveriesRecord(ctx, params)
	if err != nil {
		return nil, err
	}
	results = slices.DeleteFunc(results, func(r result) bool { return !slices.Contains(recorded, r.id) })
	disabled, err := d.recordHealth(ctx, queries, webhook, results)
	if err != nil {
		return nil, err
	}
	events, err := settleMessages(ctx, queries, d.AccountID, messages, time.Time{})
	return append(events, disabled...), err
}

// recordHealth notes whether the webhook fails or is slow, and disables it when it is gone or
// has failed for 5 days. It then returns the event.
func (d *drain) recordHealth(ctx context.Context, queries *db.Queries, webhook db.WebhookLockRow, results []result) ([]event.Event, error) {
	if webhook.Status != "enabled" {
		d.stop()
		return nil, nil
	}
	health, isChanged := d.health(webhook, results)
	if isChanged {
		if err := queries.WebhookHealth(ctx, health); err != nil {
			return nil, err
		}
	}
	failingFor := time.Duration(0)
	if health.FailingSince != nil && health.Failures > webhook.Failures {
		failingFor = webhook.Now.Sub(*health.FailingSince)
	}
	switch {
	case slices.ContainsFunc(results, func(r result) bool { return r.isGone() }):
		return d.disable(ctx, queries, "gone")
	case failingFor >= givenUpAfter:
		return d.disable(ctx, queries, "failing")
	case d.isTrial && failingFor >= maxAge:
		d.failedAt = webhook.Now
	}
	return nil, nil
}

// health returns the state of a locked webhook after attempts, and whether it has changed. A
// success ends the failing.
func (d *drain) health(webhook db.WebhookLockRow, results []result) (after db.WebhookHealthParams, isChanged bool) {
	after = db.WebhookHealthParams{
		AccountID: d.AccountID, ID: d.WebhookID,
		Failures: webhook.Failures, FailingSince: webhook.FailingSince, RetryAt: webhook.RetryAt, SlowUntil: webhook.SlowUntil,
	}
	succeeded, failed := false, false
	for _, r := range results {
		if r.url != "" && r.url != webhook.URL {
			continue // an event reached the URL before a change
		}
		switch {
		case r.saysNothing():
		case r.isSuccess():
			succeeded, after.Failures = true, 0
		default:
			failed = true
			after.Failures++
		}
		if r.took > slowAfter {
			after.SlowUntil = new(webhook.Now.Add(slowFor))
		}
	}
	if !d.isTrial { // requests that were in flight with the tenth failure do not lengthen the pause
		after.Failures = min(after.Failures, maxFailures)
	}
	last := webhook.RetryAt
	if d.isAskedAgain(webhook) {
		last = &d.pauseEnd // the request has replaced it
	}
	isQuiet := last == nil || webhook.Now.Sub(*last) >= quietAfter
	switch {
	case succeeded:
		after.FailingSince = nil
	case failed && (after.FailingSince == nil || isQuiet):
		after.FailingSince = &webhook.Now
	}
	switch {
	case after.Failures == 0:
		after.RetryAt = nil
	case failed && !d.isAskedAgain(webhook):
		after.RetryAt = new(webhook.Now.Add(pauseAfter(after.Failures)))
	}
	isNewlySlow := after.SlowUntil != webhook.SlowUntil && (webhook.SlowUntil == nil || after.SlowUntil.Sub(*webhook.SlowUntil) > slowFor/2)
	return after, failed || succeeded && (webhook.Failures > 0 || webhook.FailingSince != nil) || isNewlySlow
}

// isAskedAgain reports whether a request has asked for another attempt since the one after
// the last pause began.
func (d *drain) isAskedAgain(webhook db.WebhookLockRow) bool {
	return d.isTrial && webhook.RetryAt != nil && webhook.RetryAt.After(d.pauseEnd)
}

// pauseAfter returns how long a webhook pauses after a number of failures in a row.
func pauseAfter(failures int32) time.Duration {
	if failures < maxFailures {
		return 0
	}
	const doublings = 6 // more reach maxPause
	return vary(min(minPause<<min(failures-maxFailures, doublings), maxPause))
}

// disable disables the webhook, and returns the event about it.
func (d *drain) disable(ctx context.Context, queries *db.Queries, reason string) ([]event.Event, error) {
	d.stop()
	row, err := queries.WebhookDisable(ctx, db.WebhookDisableParams{AccountID: d.AccountID, ID: d.WebhookID, Reason: &reason})
	if err != nil {
		return nil, err
	}
	data, err := httpjson.Encode(map[string]any{"webhook": event.DisabledWebhook{
		ID: row.ID, Types: row.Types, Status: row.Status, DisabledReason: row.DisabledReason, CreatedAt: row.CreatedAt.UTC(),
	}})
	if err != nil {
		return nil, err
	}
	return []event.Event{{Type: event.WebhookDisabled, Subject: "/webhooks/" + d.WebhookID, Data: data}}, nil
}

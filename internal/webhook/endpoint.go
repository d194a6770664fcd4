package webhook

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"petstore/db"
	"petstore/internal/standardwebhooks"
)

const (
	// MaxWebhooks is the maximum number of webhooks of an account.
	MaxWebhooks = 20
	// MaxStored is the maximum number of them with deleted ones that the sweep has not deleted yet.
	MaxStored = 100
)

// AnyType in the types of a webhook means all types.
const AnyType = "*"

// Wants reports whether a webhook with some types gets an event of a type.
func Wants(types []string, eventType string) bool {
	return slices.Contains(types, eventType) || slices.Contains(types, AnyType)
}

// The statuses of a webhook, and why one that a request has disabled is disabled.
const (
	Enabled        = "enabled"
	Disabled       = "disabled"
	disabledByHand = "manual"
)

// Errors of changes.
var (
	// ErrNotFound means that the account has no such webhook.
	ErrNotFound = errors.New("webhook: the webhook does not exist")
	// ErrTooMany means that the account has [MaxWebhooks], or [MaxStored] with the deleted ones.
	ErrTooMany = errors.New("webhook: the account has too many webhooks")
	// ErrNoAccount means that the account is deleted.
	ErrNoAccount = errors.New("webhook: the account does not exist")
)

// Fields are the fields of a webhook that clients set.
type Fields struct {
	URL         *string
	Types       []string
	Description *string
	// ClearsDescription means that a change without a Description removes the old one.
	ClearsDescription bool
	Status            *string
}

// Create creates an enabled webhook with a secret, in a transaction. The error is
// [ErrTooMany], [ErrNoAccount] or comes from the database.
func (v *Vault) Create(ctx context.Context, queries *db.Queries, account int64, fields Fields) (row db.WebhookCreateRow, secret standardwebhooks.Secret, err error) {
	id := NewID()
	if err := queries.WebhooksLock(ctx, account); err != nil {
		return row, secret, err
	}
	count, err := queries.WebhookCount(ctx, account)
	switch {
	case err != nil:
		return row, secret, err
	case count.Live >= MaxWebhooks, count.Stored >= MaxStored:
		return row, secret, ErrTooMany
	}
	secret = standardwebhooks.NewSecret()
	row, err = queries.WebhookCreate(ctx, db.WebhookCreateParams{
		AccountID: account, ID: id, URL: *fields.URL, Types: fields.Types, Description: fields.Description,
		Secret: v.Seal(Endpoint{account, id}, secret),
	})
	return row, secret, insteadOfNoRows(err, ErrNoAccount)
}

// Rotate gives a webhook a new secret, in a transaction. The old one signs too for the
// grace, in whole seconds. The error is [ErrNotFound] or comes from the database.
func (v *Vault) Rotate(ctx context.Context, queries *db.Queries, e Endpoint, grace time.Duration) (row db.WebhookRotateRow, secret standardwebhooks.Secret, err error) {
	if !IsID(e.ID) {
		return row, secret, ErrNotFound
	}
	secret = standardwebhooks.NewSecret()
	row, err = queries.WebhookRotate(ctx, db.WebhookRotateParams{
		AccountID: e.AccountID, ID: e.ID, GraceSeconds: int64(grace / time.Second), Secret: v.Seal(e, secret),
	})
	return row, secret, insteadOfNoRows(err, ErrNotFound)
}

// Lock returns a webhook, and locks it until the transaction ends. The error is [ErrNotFound]
// or comes from the database.
func Lock(ctx context.Context, queries *db.Queries, e Endpoint) (row db.WebhookGetLockedRow, err error) {
	if !IsID(e.ID) {
		return row, ErrNotFound
	}
	row, err = queries.WebhookGetLocked(ctx, db.WebhookGetLockedParams{AccountID: e.AccountID, ID: e.ID})
	return row, insteadOfNoRows(err, ErrNotFound)
}

// Update changes a webhook that the transaction has locked. The error comes from the
// database.
func Update(ctx context.Context, queries *db.Queries, account int64, current db.WebhookGetLockedRow, fields Fields) (db.WebhookUpdateRow, error) {
	params := db.WebhookUpdateParams{
		AccountID: account, ID: current.ID, URL: current.URL, Types: current.Types, Description: current.Description,
		Status: current.Status, DisabledReason: current.DisabledReason,
	}
	if fields.URL != nil {
		params.URL = *fields.URL
	}
	if fields.Types != nil {
		params.Types = fields.Types
	}
	if fields.Description != nil || fields.ClearsDescription {
		params.Description = fields.Description
	}
	switch {
	case fields.Status == nil || *fields.Status == current.Status:
	case *fields.Status == Enabled:
		params.Status, params.DisabledReason = Enabled, nil
	default:
		params.Status, params.DisabledReason = Disabled, new(disabledByHand)
	}
	return queries.WebhookUpdate(ctx, params)
}

// insteadOfNoRows returns another error instead of [pgx.ErrNoRows].
func insteadOfNoRows(err, other error) error {
	if errors.Is(err, pgx.ErrNoRows) {
		return other
	}
	return err
}

package api

import (
	"context"
	"time"

	"petstore/db"
	"petstore/internal/event"
	"petstore/internal/groupcommit"
	"petstore/internal/httpjson"
)

// affected is the data of an event: the resources whose representation a change has
// altered, as they are afterwards, or as they were before they were deleted.
type affected struct {
	Order     *order         `json:"order,omitzero"`
	Inventory *inventoryItem `json:"inventory,omitzero"`
	Pet       *pet           `json:"pet,omitzero"`
	Category  *category      `json:"category,omitzero"`
	Message   *message       `json:"message,omitzero"`

	Webhook *disabledWebhook `json:"webhook,omitzero"`
}

// disabledWebhook is the DisabledWebhook schema of the spec: a webhook as all readers of the
// feed may see it. Its URL and its description are for the scope admin, and a URL often is a
// secret by itself.
type disabledWebhook struct {
	ID             string    `json:"id"`
	Types          []string  `json:"types"`
	Status         string    `json:"status"`
	DisabledReason *string   `json:"disabledReason,omitempty"`
	CreatedAt      time.Time `json:"createdAt"`
}

// affectedPet returns what a change of a pet or of its stock has altered.
func affectedPet(before, after groupcommit.Pet) (a affected) {
	if pet := stockedPet(after); pet != stockedPet(before) {
		a.Pet = &pet
	}
	if item := stockOf(after); item != stockOf(before) {
		a.Inventory = &item
	}
	return a
}

// withOrder adds the order after a change, if the change has altered it.
func (a affected) withOrder(before, after order) affected {
	if !after.equals(before) {
		a.Order = &after
	}
	return a
}

// WebhookDisabled returns the data of the event that the worker has disabled a webhook, in
// the transaction that has done so.
func WebhookDisabled(ctx context.Context, queries *db.Queries, accountID int64, webhookID string) ([]byte, error) {
	row, err := queries.WebhookGet(ctx, db.WebhookGetParams{AccountID: accountID, ID: webhookID})
	if err != nil {
		return nil, err
	}
	return httpjson.Encode(affected{Webhook: &disabledWebhook{
		ID: row.ID, Types: row.Types, Status: row.Status, DisabledReason: row.DisabledReason, CreatedAt: row.CreatedAt.UTC(),
	}})
}

// emit adds an event about a change of a resource to the feed. A change that has altered
// no representation has no event.
func emit(state *groupcommit.State, kind event.Type, subject string, a affected) error {
	if a == (affected{}) {
		return nil
	}
	data, err := a.encode()
	if err == nil {
		state.Emit(event.Event{Type: kind, Subject: subject, Data: data})
	}
	return err
}

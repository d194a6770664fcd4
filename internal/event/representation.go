package event

import (
	"time"

	"github.com/go-json-experiment/json/jsontext"

	"petstore/db"
)

// Source is the account whose feed has an event, as clients see it.
type Source struct {
	AccountID string `json:"accountId"`
	Sandbox   bool   `json:"sandbox"`
}

// Representation is the Event schema of the spec, which the feed, the stream and webhooks
// have in common.
type Representation struct {
	ID string `json:"id"`
	Source
	Sequence  int64          `json:"sequence"`
	Type      string         `json:"type"`
	Timestamp time.Time      `json:"timestamp"`
	Subject   string         `json:"subject"`
	Data      jsontext.Value `json:"data"`
}

// Represent returns the representation of an event of an account.
func Represent(accountID int64, source Source, row db.EventListRow) Representation {
	return Representation{
		ID: IDOf(accountID, row.Sequence, row.Nonce).String(), Source: source, Sequence: row.Sequence,
		Type: row.Type, Timestamp: row.CreatedAt.UTC(), Subject: row.Subject, Data: row.Data,
	}
}

// Message is the Message schema of the spec.
type Message struct {
	ID        string    `json:"id"`
	Message   string    `json:"message"`
	Status    string    `json:"status"`
	CreatedAt time.Time `json:"createdAt"`
}

// DisabledWebhook is the DisabledWebhook schema of the spec: a webhook as all readers of the
// feed may see it. Its URL and its description are for the scope admin, and a URL often is a
// secret by itself.
type DisabledWebhook struct {
	ID             string    `json:"id"`
	Types          []string  `json:"types"`
	Status         string    `json:"status"`
	DisabledReason *string   `json:"disabledReason,omitempty"`
	CreatedAt      time.Time `json:"createdAt"`
}

// Package event writes the feed of an account: the events of its store, numbered 1, 2, 3, …
// without gaps.
//
// The transaction of a change numbers its events. So the feed has an event if and only if
// the change has committed, and its order is the order of the commits
// (docs/decisions/0021-events.md).
package event

import (
	"context"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"strings"

	"petstore/db"
)

// Type is the type of an event.
type Type string

// The types of events.
const (
	PetCreated       Type = "pet.created"
	PetUpdated       Type = "pet.updated"
	PetDeleted       Type = "pet.deleted"
	CategoryCreated  Type = "category.created"
	CategoryUpdated  Type = "category.updated"
	CategoryDeleted  Type = "category.deleted"
	InventoryUpdated Type = "inventory.updated"
	OrderPlaced      Type = "order.placed"
	OrderUpdated     Type = "order.updated"
	OrderCompleted   Type = "order.completed"
	OrderCancelled   Type = "order.cancelled"
	MessageQueued    Type = "message.queued"
	MessageDelivered Type = "message.delivered"
	MessageFailed    Type = "message.failed"
	WebhookDisabled  Type = "webhook.disabled"
	StoreReset       Type = "store.reset"
)

// Description describes a type of events.
type Description struct {
	Type Type   `json:"type"`
	Text string `json:"description"`
	// Data are the fields of the data of every event of the type, which are resources.
	Data []string `json:"-"`
	// Changed are fields for resources that the change may alter too.
	Changed []string `json:"-"`
}

// Types describes the types of events.
var Types = []Description{
	{PetCreated, "A pet was created, with its inventory entry.", []string{"pet", "inventory"}, nil},
	{PetUpdated, "A pet changed.", []string{"pet"}, []string{"inventory"}},
	{PetDeleted, "A pet was deleted, with its inventory entry.", []string{"pet", "inventory"}, nil},
	{CategoryCreated, "A category was created.", []string{"category"}, nil},
	{CategoryUpdated, "A category changed.", []string{"category"}, nil},
	{CategoryDeleted, "A category was deleted.", []string{"category"}, nil},
	{InventoryUpdated, "A client set the stock of a pet, which can change its status.", []string{"inventory"}, []string{"pet"}},
	{OrderPlaced, "An order took units from stock.", []string{"order", "inventory"}, []string{"pet"}},
	{OrderUpdated, "The ship date of an order changed.", []string{"order"}, nil},
	{OrderCompleted, "An order is complete. Its units have left for good.", []string{"order"}, []string{"inventory", "pet"}},
	{OrderCancelled, "An order was cancelled and deleted. Its units are back in stock.", []string{"order", "inventory"}, []string{"pet"}},
	{MessageQueued, "A message was queued.", []string{"message"}, nil},
	{MessageDelivered, "All webhooks for messages have accepted the message.", []string{"message"}, nil},
	{MessageFailed, "All attempts of a webhook have failed, or the message is 72 hours old and no enabled webhook wants it.", []string{"message"}, nil},
	{WebhookDisabled, "The server disabled a webhook that fails or is gone. The event has neither its `url` nor its `description`.", []string{"webhook"}, nil},
	{StoreReset, "Sample data, or a backup that was restored, replaced everything in the store.", nil, nil},
}

// TypeNames returns the names of the types of events, in the order of [Types].
func TypeNames() []string {
	names := make([]string, len(Types))
	for i, one := range Types {
		names[i] = string(one.Type)
	}
	return names
}

// Event is something that happened in a store.
type Event struct {
	Type    Type
	Subject string // the path of the resource that the request changed
	// Data is a JSON object of the resources whose representation the change altered, as
	// they are afterwards, or as they were before they were deleted.
	Data []byte
}

// Reset returns the event that sample data replaced everything in the store. Its data
// would be the whole store, so it has none.
func Reset() Event { return Event{Type: StoreReset, Subject: "/account", Data: []byte("{}")} }

// NewestIDs are the newest ids of a sandbox, by kind; 0: nothing new.
type NewestIDs struct{ Category, Pet, Order, Message int64 }

// Queue queues the statement that numbers and inserts events at the end of a transaction,
// and stores the newest ids of a sandbox. The queries must belong to a pipeline. Nothing may
// come after it but COMMIT, because all writers of the account wait until the transaction ends.
func Queue(ctx context.Context, queries *db.Queries, accountID int64, events []Event, newest NewestIDs) {
	if len(events) > 0 || newest != (NewestIDs{}) {
		queries.EventsAppend(ctx, statement(accountID, events, newest))
	}
}

// Append numbers and inserts events as [Queue] does, in a transaction without a pipeline.
func Append(ctx context.Context, queries *db.Queries, accountID int64, events ...Event) (err error) {
	queries.EventsAppend(ctx, statement(accountID, events, NewestIDs{})).Exec(func(_ int, failed error) { err = failed })
	if err != nil {
		return fmt.Errorf("event: appending to the feed: %w", err)
	}
	return nil
}

// NewNonce returns a nonce ([ID]). The events of a transaction share it, because a failover
// loses all of them or none.
func NewNonce() int64 { return int64(rand.Uint32()) } //nolint:gosec // no secret

// statement returns the parameters of the statement.
func statement(accountID int64, events []Event, newest NewestIDs) []db.EventsAppendParams {
	made := db.EventsAppendParams{
		AccountID: accountID,
		Nonce:     NewNonce(),
		Types:     make([]string, len(events)), Subjects: make([]string, len(events)), Data: make([]string, len(events)),
		LastCategoryID: newest.Category, LastPetID: newest.Pet, LastOrderID: newest.Order, LastMessageID: newest.Message,
	}
	for i, e := range events {
		made.Types[i], made.Subjects[i], made.Data[i] = string(e.Type), e.Subject, string(e.Data)
	}
	return []db.EventsAppendParams{made}
}

// ID identifies an event among the events of all accounts.
type ID struct {
	Account int64
	// Sequence is the number of the event in the feed; 0: the position before the first.
	Sequence int64
	// Nonce tells apart two events with the same number. A failover to a server that had
	// not received the last events causes them.
	Nonce uint32
}

// IDOf returns the id of an event, of values that the database has.
func IDOf(account, sequence, nonce int64) ID {
	return ID{account, sequence, uint32(nonce)} //nolint:gosec // events_nonce_check
}

// IDPrefix begins the ids of events. 32 hexadecimal digits follow, as in the ids of webhooks,
// deliveries and messages.
const IDPrefix = "evt_"

// String returns the id in the form that clients see. The account, the number and the nonce
// have a fixed width, so the ids of a feed sort by number.
func (id ID) String() string {
	return fmt.Sprintf(IDPrefix+"%012x%012x%08x", id.Account, id.Sequence, id.Nonce)
}

// ParseID reads an id. It accepts only the form that [ID.String] returns.
func ParseID(text string) (ID, bool) {
	digits, found := strings.CutPrefix(text, IDPrefix)
	raw, err := hex.DecodeString(digits)
	if !found || err != nil || len(raw) != 16 {
		return ID{}, false
	}
	id := ID{
		Account:  int64(binary.BigEndian.Uint64(raw[:8]) >> 16),
		Sequence: int64(binary.BigEndian.Uint64(raw[4:12]) & (1<<48 - 1)),
		Nonce:    binary.BigEndian.Uint32(raw[12:]),
	}
	return id, id.String() == text // which has lower-case digits
}

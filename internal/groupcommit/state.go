package groupcommit

import (
	"encoding/hex"
	"fmt"
	"time"

	"github.com/google/uuid"

	"petstore/db"
	"petstore/internal/account"
	"petstore/internal/event"
	"petstore/internal/stock"
)

// State is the locked rows of a store as the writes of a group so far left them.
type State struct {
	Pets       Rows[Pet] // new ones have no stock
	Orders     Rows[db.Order]
	Categories Rows[db.Category] // only a write that runs alone may change them
	// HasOrders and HasPets are whether orders name the pet of a write that runs alone, and pets
	// its category. It may delete it only if there are none.
	HasOrders, HasPets bool

	group    *group
	store    Store
	entered  bool // whether the transaction has locked the store of a sandbox
	closed   bool // whether the sandbox is being deleted
	feedHeld bool // whether a common group has left the store out, because another transaction holds its feed

	messages        db.MessagesInsertParams // new ones
	events          []event.Event
	stored, created map[account.Kind]int   // rows of a sandbox, and rows that the group creates
	newest          map[account.Kind]int64 // the newest ids of a sandbox, also of rows that the group creates
	now             time.Time              // of the transaction
}

// newState returns the state of a store of which a group has not locked anything yet.
func newState(g *group, store Store) *State {
	s := &State{group: g, store: store, stored: map[account.Kind]int{}, created: map[account.Kind]int{}, newest: map[account.Kind]int64{}}
	s.Pets.id, s.Pets.newID = func(p *Pet) *int64 { return &p.ID }, func() int64 { return s.newID(account.Pets) }
	s.Orders.id, s.Orders.newID = func(o *db.Order) *int64 { return &o.ID }, func() int64 { return s.newID(account.Orders) }
	s.Categories.id, s.Categories.newID = func(c *db.Category) *int64 { return &c.ID }, func() int64 { return s.newID(account.Categories) }
	return s
}

// Pet is a pet with its stock.
type Pet struct {
	ID, CategoryID int64
	Name, NameKey  string
	Stock          stock.State
}

// keyName identifies an Idempotency-Key.
type keyName struct {
	APIKeyID int64
	Key      string
}

func (k *Key) name() keyName { return keyName{k.APIKeyID, k.Key} }

// heldKey is an Idempotency-Key that the transaction has locked.
type heldKey struct {
	fingerprint []byte
	response    *Response // nil: none
	by          *State    // of the store whose write has made the response; nil: it was stored before
	expired     bool      // whether an expired response is stored
}

// CreateMessage creates a message, and returns its id and the time of its creation.
func (s *State) CreateMessage(text string) (id string, createdAt time.Time) {
	id = s.newMessageID()
	s.messages.Ids, s.messages.Messages = append(s.messages.Ids, id), append(s.messages.Messages, text)
	return id, s.now
}

// Emit adds an event about a change that the write has made.
func (s *State) Emit(e event.Event) { s.events = append(s.events, e) }

// newMessageID returns the id of a new message. Ids sort by time.
func (s *State) newMessageID() string {
	if s.store.Sandbox {
		return fmt.Sprintf("msg_%032x", s.newID(account.Messages))
	}
	id := uuid.Must(uuid.NewV7()) // reading random bytes never fails
	return "msg_" + hex.EncodeToString(id[:])
}

// newIDs returns the newest ids of a sandbox if the group has created rows.
func (s *State) newIDs() event.NewestIDs {
	if len(s.created) == 0 {
		return event.NewestIDs{}
	}
	return event.NewestIDs{Category: s.newest[account.Categories], Pet: s.newest[account.Pets], Order: s.newest[account.Orders], Message: s.newest[account.Messages]}
}

// newID returns the id of a new row of a kind: in a sandbox the one after the newest, and in
// an account a reserved one.
func (s *State) newID(kind account.Kind) int64 {
	if s.store.Sandbox {
		s.created[kind]++
		s.newest[kind]++
		return s.newest[kind]
	}
	id := s.group.ids[kind][0]
	s.group.ids[kind] = s.group.ids[kind][1:]
	return id
}

// changes counts what the writes so far have changed.
func (s *State) changes() int {
	return s.Pets.changes + s.Orders.changes + s.Categories.changes + len(s.messages.Ids) + len(s.events)
}

// has reports whether the state has all rows that a write names.
func (s *State) has(w *Write) bool {
	_, hasPet := s.Pets.Get(w.Pet)
	_, hasOrder := s.Orders.Get(w.Order)
	_, hasCategory := s.Categories.Get(w.Category)
	return (w.Pet == 0 || hasPet) && (w.Order == 0 || hasOrder) && (w.Category == 0 || hasCategory)
}

// Rows are the rows of a table that the transaction has locked, and new ones.
type Rows[Row any] struct {
	id              func(*Row) *int64
	newID           func() int64
	before, current map[int64]Row // by id; before has the changed ones
	deleted         []int64
	created         []Row
	changes         int // number of calls that changed something
}

// found adds a row that the group has locked.
func (r *Rows[Row]) found(row Row) {
	if r.current == nil {
		r.current = map[int64]Row{}
	}
	r.current[*r.id(&row)] = row
}

// Get returns a row. It reports false if the row does not exist.
func (r *Rows[Row]) Get(id int64) (Row, bool) {
	row, known := r.current[id]
	return row, known
}

// Set changes a row that Get has returned.
func (r *Rows[Row]) Set(row Row) {
	id := *r.id(&row)
	if r.before == nil {
		r.before = map[int64]Row{}
	}
	if _, isChanged := r.before[id]; !isChanged {
		r.before[id] = r.current[id]
	}
	r.current[id] = row
	r.changes++
}

// Create creates a row, and returns its id. The write must have announced it in Creates.
func (r *Rows[Row]) Create(row Row) int64 {
	id := r.newID()
	*r.id(&row) = id
	r.created = append(r.created, row)
	r.changes++
	return id
}

// Delete deletes a row to which no other one refers.
func (r *Rows[Row]) Delete(id int64) {
	delete(r.current, id)
	delete(r.before, id)
	r.deleted = append(r.deleted, id)
	r.changes++
}

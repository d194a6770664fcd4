package groupcommit

import (
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	"github.com/google/uuid"

	"petstore/db"
	"petstore/internal/account"
	"petstore/internal/event"
	"petstore/internal/stock"
)

// State is the locked rows of a group as the writes so far left them.
type State struct {
	store   Store
	waits   bool // whether the transaction waits for locks
	entered bool // whether it has locked the store of a sandbox
	closed  bool // whether the sandbox is being deleted

	spoiled  bool // whether a write changed something and failed
	common   bool // whether the group has writes of other stores
	feedHeld bool // whether that group has left the store out, because another transaction holds its feed

	pets       rows[Pet]
	orders     rows[db.Order]
	categories rows[db.Category]
	messages   []message
	events     []event.Event
	keys       map[keyName]*heldKey // that no other transaction holds
	confirms   bool                 // whether a response may confirm an earlier transaction, whose rows are not locked

	stored, created map[account.Kind]int     // rows of a sandbox, and rows that the group creates
	ids             map[account.Kind][]int64 // that an account has reserved
	newest          map[account.Kind]int64   // the newest ids of a sandbox, with those of the group
	now             time.Time                // of the transaction
	withOrders      []int64                  // pets with orders, if a write runs alone
	withPets        []int64                  // categories with pets, if a write runs alone
}

// newState returns the state of a group that has not locked anything yet.
func newState(store Store, waits bool) *State {
	return &State{
		store: store, waits: waits, keys: map[keyName]*heldKey{},
		stored: map[account.Kind]int{}, created: map[account.Kind]int{}, ids: map[account.Kind][]int64{}, newest: map[account.Kind]int64{},
	}
}

// Pet is a pet with its stock.
type Pet struct {
	ID, CategoryID int64
	Name, NameKey  string
	Stock          stock.State
}

// message is a new message.
type message struct{ id, text string }

// keyName identifies an Idempotency-Key within an account.
type keyName struct {
	apiKeyID int64
	key      string
}

func (k *Key) name() keyName { return keyName{k.APIKeyID, k.Key} }

// holdKey adds a key that the transaction has locked.
func (s *State) holdKey(name keyName) { s.keys[name] = &heldKey{} }

// heldKey is an Idempotency-Key that the transaction has locked.
type heldKey struct {
	response *storedResponse // nil: none
	expired  bool            // whether an expired response is stored
}

// storedResponse is the response of a key.
type storedResponse struct {
	key Key
	Response

	isNew bool // whether this group has made it
}

// Pet returns a pet. It reports false if the pet does not exist.
func (s *State) Pet(id int64) (Pet, bool) { return s.pets.get(id) }

// SetPet changes a pet that Pet has returned, and its stock.
func (s *State) SetPet(p Pet) { s.pets.set(p.ID, p) }

// CreatePet creates a pet without stock, and returns its id.
func (s *State) CreatePet(p Pet) int64 {
	p.ID = s.newID(account.Pets)
	s.pets.create(p)
	return p.ID
}

// HasOrders reports whether a pet has orders. The write must run alone.
func (s *State) HasOrders(petID int64) bool { return slices.Contains(s.withOrders, petID) }

// DeletePet deletes a pet without orders. The write must run alone.
func (s *State) DeletePet(id int64) { s.pets.delete(id) }

// Order returns an order. It reports false if the order does not exist.
func (s *State) Order(id int64) (db.Order, bool) { return s.orders.get(id) }

// SetOrder changes the ship date or the completion of an order that Order has returned.
func (s *State) SetOrder(o db.Order) { s.orders.set(o.ID, o) }

// CreateOrder creates an open order, and returns its id.
func (s *State) CreateOrder(o db.Order) int64 {
	o.ID = s.newID(account.Orders)
	s.orders.create(o)
	return o.ID
}

// DeleteOrder deletes an order.
func (s *State) DeleteOrder(id int64) { s.orders.delete(id) }

// Category returns a category. It reports false if the category does not exist.
func (s *State) Category(id int64) (db.Category, bool) { return s.categories.get(id) }

// SetCategory changes a category that Category has returned. The write must run alone.
func (s *State) SetCategory(c db.Category) { s.categories.set(c.ID, c) }

// CreateCategory creates a category, and returns its id. The write must run alone.
func (s *State) CreateCategory(c db.Category) int64 {
	c.ID = s.newID(account.Categories)
	s.categories.create(c)
	return c.ID
}

// HasPets reports whether a category has pets. The write must run alone.
func (s *State) HasPets(categoryID int64) bool { return slices.Contains(s.withPets, categoryID) }

// DeleteCategory deletes a category without pets. The write must run alone.
func (s *State) DeleteCategory(id int64) { s.categories.delete(id) }

// CreateMessage creates a message, and returns its id and the time of its creation.
func (s *State) CreateMessage(text string) (id string, createdAt time.Time) {
	id = s.newMessageID()
	s.messages = append(s.messages, message{id, text})
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
	if !s.store.Sandbox || len(s.created) == 0 {
		return event.NewestIDs{}
	}
	return event.NewestIDs{Category: s.newest[account.Categories], Pet: s.newest[account.Pets], Order: s.newest[account.Orders], Message: s.newest[account.Messages]}
}

// newID returns the id of a new row of a kind: in a sandbox the one after the newest, and in
// an account a reserved one.
func (s *State) newID(kind account.Kind) int64 {
	s.created[kind]++
	if s.store.Sandbox {
		s.newest[kind]++
		return s.newest[kind]
	}
	id := s.ids[kind][0]
	s.ids[kind] = s.ids[kind][1:]
	return id
}

// changes counts what the writes so far have changed.
func (s *State) changes() int {
	return s.pets.changes + s.orders.changes + s.categories.changes + len(s.messages)
}

// has reports whether the state has all rows that a write names.
func (s *State) has(w *Write) bool {
	_, hasPet := s.pets.get(w.Pet)
	_, hasOrder := s.orders.get(w.Order)
	_, hasCategory := s.categories.get(w.Category)
	return (w.Pet == 0 || hasPet) && (w.Order == 0 || hasOrder) && (w.Category == 0 || hasCategory)
}

// rows are the rows of a table.
type rows[Row any] struct {
	before, current  map[int64]Row // by id; before has the changed ones
	changed, deleted []int64       // in the order of the first change
	created          []Row
	changes          int // number of calls that changed something
}

// found adds a row that the group has locked.
func (r *rows[Row]) found(id int64, row Row) {
	if r.current == nil {
		r.current = map[int64]Row{}
	}
	r.current[id] = row
}

func (r *rows[Row]) get(id int64) (Row, bool) {
	row, known := r.current[id]
	return row, known
}

func (r *rows[Row]) set(id int64, row Row) {
	if !slices.Contains(r.changed, id) {
		if r.before == nil {
			r.before = map[int64]Row{}
		}
		r.changed = append(r.changed, id)
		r.before[id] = r.current[id]
	}
	r.current[id] = row
	r.changes++
}

func (r *rows[Row]) create(row Row) {
	r.created = append(r.created, row)
	r.changes++
}

func (r *rows[Row]) delete(id int64) {
	delete(r.current, id)
	r.changed = slices.DeleteFunc(r.changed, func(changed int64) bool { return changed == id })
	r.deleted = append(r.deleted, id)
	r.changes++
}

package groupcommit

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"petstore/db"
	"petstore/internal/account"
	"petstore/internal/event"
	"petstore/internal/postgres"
)

// groupKind is the kind of a group, as the documentation of the package describes it.
type groupKind int

const (
	commonGroup  groupKind = iota // of several stores
	ownGroup                      // of one store
	waitingGroup                  // of one store, and its transaction waits for locks
)

// storeWrite is a write of a store.
type storeWrite struct {
	Store
	*Write
}

// group is the writes of a transaction. Each store has a state of its own, so that a common
// group can leave it out.
type group struct {
	kind   groupKind
	writes []storeWrite

	states   map[int64]*State         // by account
	keys     map[keyName]*heldKey     // that no other transaction holds
	ids      map[account.Kind][]int64 // that are reserved for new rows of accounts
	confirms *State                   // a response of its store may confirm an earlier transaction, whose rows are not locked; nil: none

	ctx     context.Context //nolint:containedctx // of one call
	queries *db.Queries
	reads   []func() error // of the results of the queued statements, in the same order
}

// newGroup returns a group that has not locked anything yet.
func newGroup(kind groupKind, writes ...storeWrite) *group {
	g := &group{kind: kind, writes: writes, states: map[int64]*State{}, keys: map[keyName]*heldKey{}, ids: map[account.Kind][]int64{}}
	for _, w := range writes {
		if g.states[w.AccountID] == nil {
			g.states[w.AccountID] = newState(g, w.Store)
		}
	}
	return g
}

// lock locks what the writes name and reads it, in one round trip.
func (g *group) lock(ctx context.Context, p *postgres.Pipeline) error {
	g.ctx, g.queries = ctx, db.New(p)
	if len(g.writes) > 1 {
		limit := groupTimeout
		if g.kind == waitingGroup {
			limit = waitingTimeout
		}
		g.await(g.queries.StatementsLimit(ctx, []int64{limit.Milliseconds()}))
	}
	if g.kind == commonGroup {
		g.enterSandboxes()
		g.lockKeys()
		g.lockPets()
	} else {
		g.states[g.writes[0].AccountID].lock()
	}
	g.reserve()
	if err := p.Send(ctx); err != nil {
		return err
	}
	return g.readAll()
}

// enterSandboxes locks the stores of sandboxes, and reads their newest orders.
func (g *group) enterSandboxes() {
	var sandboxes []int64
	for id, s := range g.states {
		if s.store.Sandbox {
			sandboxes = append(sandboxes, id)
			s.closed = true // if there is no row
		}
	}
	if len(sandboxes) == 0 {
		return
	}
	find(g, g.queries.StoresTryEnter(g.ctx, [][]int64{sandboxes}), func(id int64) { g.states[id].entered = true })
	find(g, g.queries.StoresRead(g.ctx, [][]int64{sandboxes}), func(row db.StoresReadRow) {
		s := g.states[row.AccountID]
		s.closed = row.Closed
		s.newest[account.Orders] = row.LastOrderID
	})
}

// lockKeys locks the keys of the writes and reads their stored responses.
func (g *group) lockKeys() {
	var named db.StoreKeysGetParams
	for _, w := range g.writes {
		if w.Key != nil {
			named.AccountIds = append(named.AccountIds, w.AccountID)
			named.ApiKeyIds, named.Keys = append(named.ApiKeyIds, w.Key.APIKeyID), append(named.Keys, w.Key.Key)
		}
	}
	if len(named.Keys) == 0 {
		return
	}
	hold := func(row db.StoreKeysLockRow) { g.keys[keyName(row)] = &heldKey{} }
	if g.kind == commonGroup {
		find(g, g.queries.StoreKeysLock(g.ctx, []db.StoreKeysLockParams{{ApiKeyIds: named.ApiKeyIds, Keys: named.Keys}}), hold)
		find(g, g.queries.StoreKeysGet(g.ctx, []db.StoreKeysGetParams{named}), g.useStored)
		return
	}
	id := g.writes[0].AccountID
	find(g, g.queries.IdempotencyKeysLock(g.ctx, []db.IdempotencyKeysLockParams{{AccountID: id, ApiKeyIds: named.ApiKeyIds, Keys: named.Keys}}), func(row db.IdempotencyKeysLockRow) {
		hold(db.StoreKeysLockRow(row))
	})
	find(g, g.queries.IdempotencyKeysGet(g.ctx, []db.IdempotencyKeysGetParams{{AccountID: id, ApiKeyIds: named.ApiKeyIds, Keys: named.Keys}}), func(row db.IdempotencyKeysGetRow) {
		g.useStored(db.StoreKeysGetRow(row))
	})
}

// lockPets locks the pets of several stores with their stock.
func (g *group) lockPets() {
	type name struct{ account, pet int64 }
	names := make([]name, len(g.writes))
	for i, w := range g.writes {
		names[i] = name{w.AccountID, w.Pet}
	}
	slices.SortFunc(names, func(a, b name) int {
		return cmp.Or(cmp.Compare(a.account, b.account), cmp.Compare(a.pet, b.pet))
	})
	var wanted db.StorePetsLockParams
	for _, n := range slices.Compact(names) {
		wanted.AccountIds, wanted.Ids = append(wanted.AccountIds, n.account), append(wanted.Ids, n.pet)
	}
	find(g, g.queries.StorePetsLock(g.ctx, []db.StorePetsLockParams{wanted}), func(row db.StorePetsLockRow) {
		g.states[row.AccountID].usePet(db.PetsLockRow(row))
	})
}

// write writes what the writes have changed, and commits. A common group leaves out a store whose
// feed another transaction holds.
func (g *group) write(ctx context.Context, p *postgres.Pipeline) error {
	if g.kind != commonGroup {
		g.states[g.writes[0].AccountID].write(ctx, p)
		return p.Commit(ctx, nil)
	}
	if g.confirms != nil {
		g.await(g.queries.StandbyAwait(ctx, []int64{g.confirms.store.AccountID}))
	}
	rows := db.StoresWriteParams{NoShipDate: noShipDate, Nonce: event.NewNonce()}
	for _, id := range slices.Sorted(maps.Keys(g.states)) {
		if s := g.states[id]; s.altered() {
			s.feedHeld = true // unless the statement returns it
			s.addTo(&rows)
		}
	}
	g.addResponses(&rows)
	if len(rows.AccountIds) > 0 {
		find(g, g.queries.StoresWrite(ctx, []db.StoresWriteParams{rows}), func(id int64) { g.states[id].feedHeld = false })
	}
	return p.Commit(ctx, g.readAll)
}

// altered reports whether the writes of a store have altered a row or made an event.
func (s *State) altered() bool {
	for id, before := range s.Pets.before {
		if s.Pets.current[id] != before {
			return true
		}
	}
	return len(s.Orders.created)+len(s.events) > 0
}

// addTo adds what the writes of a store have changed to the rows that a group writes, except
// responses and what no common group changes.
func (s *State) addTo(rows *db.StoresWriteParams) {
	id := s.store.AccountID
	rows.AccountIds, rows.NewEvents = append(rows.AccountIds, id), append(rows.NewEvents, int64(len(s.events)))
	rows.LastOrderIds = append(rows.LastOrderIds, s.newIDs().Order)
	for petID, before := range s.Pets.before {
		pet := s.Pets.current[petID]
		if before.Stock.Quantity != pet.Stock.Quantity || before.Stock.Held != pet.Stock.Held {
			rows.StockAccounts, rows.StockPets = append(rows.StockAccounts, id), append(rows.StockPets, petID)
			rows.Quantities, rows.Helds = append(rows.Quantities, pet.Stock.Quantity), append(rows.Helds, pet.Stock.Held)
		}
		if before.Stock.Quantity, before.Stock.Held = pet.Stock.Quantity, pet.Stock.Held; before != pet {
			rows.PetAccounts, rows.PetIds = append(rows.PetAccounts, id), append(rows.PetIds, petID)
			rows.CategoryIds = append(rows.CategoryIds, pet.CategoryID)
			rows.Names, rows.NameKeys = append(rows.Names, pet.Name), append(rows.NameKeys, pet.NameKey)
			rows.Statuses = append(rows.Statuses, string(pet.Stock.Status))
		}
	}
	for _, o := range s.Orders.created {
		rows.OrderAccounts, rows.OrderIds, rows.OrderPets = append(rows.OrderAccounts, id), append(rows.OrderIds, o.ID), append(rows.OrderPets, o.PetID)
		rows.OrderQuantities, rows.ShipDates = append(rows.OrderQuantities, o.Quantity), append(rows.ShipDates, orNoShipDate(o.ShipDate))
	}
	for i, e := range s.events {
		rows.EventAccounts, rows.LaterEvents = append(rows.EventAccounts, id), append(rows.LaterEvents, int64(len(s.events)-1-i))
		rows.Types, rows.Subjects, rows.Documents = append(rows.Types, string(e.Type)), append(rows.Subjects, e.Subject), append(rows.Documents, string(e.Data))
	}
}

// addResponses adds the responses that the group has made to the rows that it writes. In a common
// group, each comes with an order.
func (g *group) addResponses(rows *db.StoresWriteParams) {
	for name, held := range g.keys {
		if held.by == nil {
			continue
		}
		rows.KeyAccounts, rows.KeyApiKeys, rows.Keys = append(rows.KeyAccounts, held.by.store.AccountID), append(rows.KeyApiKeys, name.APIKeyID), append(rows.Keys, name.Key)
		rows.Fingerprints, rows.KeyStatuses = append(rows.Fingerprints, held.fingerprint), append(rows.KeyStatuses, int32(held.response.Status)) //nolint:gosec // an HTTP status
		rows.Locations, rows.Bodies = append(rows.Locations, held.response.Location), append(rows.Bodies, held.response.Body)
	}
}

package groupcommit

import (
	"cmp"
	"context"
	"slices"

	"petstore/db"
	"petstore/internal/account"
	"petstore/internal/event"
	"petstore/internal/postgres"
)

// storeWrite is a write of a common group.
type storeWrite struct {
	Store
	*Write
}

// mayShare reports whether a write fits into a common group: it reads and changes a pet and
// its stock, and may place orders.
func (w *Write) mayShare() bool {
	return w.Pet != 0 && w.Order == 0 && w.Category == 0 && (w.Creates == account.Orders || w.Creates == account.NoRows)
}

// common is a group whose writes belong to several stores. Each store has a state of its own,
// so that it can be left out.
type common struct {
	*batch

	writes []storeWrite
	states map[int64]*State // by account
	stores []*State         // by account id
}

// runCommon runs writes of several stores in one transaction, and returns what it decided
// about each.
func (c *Committer) runCommon(ctx context.Context, writes []storeWrite) ([]outcome, error) {
	decided := make([]outcome, len(writes))
	g := &common{writes: writes, states: map[int64]*State{}}
	for _, w := range writes {
		if g.states[w.AccountID] == nil {
			s := newState(w.Store, false)
			s.common = true
			g.states[w.AccountID] = s
			g.stores = append(g.stores, s)
		}
	}
	slices.SortFunc(g.stores, func(a, b *State) int { return cmp.Compare(a.store.AccountID, b.store.AccountID) })
	position, err := postgres.Pipe(ctx, c.db, func(ctx context.Context, p *postgres.Pipeline) error {
		g.batch = &batch{ctx: ctx, queries: db.New(p)}
		if err := g.lock(p); err != nil {
			return err
		}
		for i, w := range writes {
			decided[i].Result, decided[i].err = g.states[w.AccountID].tryDecide(w.Write)
		}
		return g.write(p)
	})
	for i, w := range writes {
		decided[i].Position = position
		switch s := g.states[w.AccountID]; {
		case s.spoiled:
			decided[i] = outcome{err: errSpoiled}
		case s.feedHeld:
			decided[i] = outcome{err: errFeedHeld}
		}
	}
	return decided, err
}

// lock locks what the writes name and reads it, in one round trip.
func (g *common) lock(p *postgres.Pipeline) error {
	if len(g.writes) > 1 {
		g.limitStatements(groupTimeout)
	}
	g.enterSandboxes()
	g.lockKeys()
	g.lockPets()
	g.reserve()
	return g.send(p)
}

// enterSandboxes locks the stores of sandboxes, and reads their newest orders.
func (g *common) enterSandboxes() {
	var sandboxes []int64
	for _, s := range g.stores {
		if s.store.Sandbox {
			sandboxes = append(sandboxes, s.store.AccountID)
			s.closed = true // if there is no row
		}
	}
	if len(sandboxes) == 0 {
		return
	}
	find(g.batch, g.queries.StoresTryEnter(g.ctx, [][]int64{sandboxes}), func(id int64) { g.states[id].entered = true })
	find(g.batch, g.queries.StoresRead(g.ctx, [][]int64{sandboxes}), func(row db.StoresReadRow) {
		s := g.states[row.AccountID]
		s.closed = row.Closed
		s.newest = map[account.Kind]int64{account.Orders: row.LastOrderID}
	})
}

// lockKeys locks the keys of the writes and reads their stored responses.
func (g *common) lockKeys() {
	var accounts, apiKeyIDs []int64
	var keys []string
	stores := map[int64]*State{} // by API key
	for _, w := range g.writes {
		if w.Key != nil {
			accounts, apiKeyIDs, keys = append(accounts, w.AccountID), append(apiKeyIDs, w.Key.APIKeyID), append(keys, w.Key.Key)
			stores[w.Key.APIKeyID] = g.states[w.AccountID]
		}
	}
	if len(keys) == 0 {
		return
	}
	find(g.batch, g.queries.StoreKeysLock(g.ctx, []db.StoreKeysLockParams{{ApiKeyIds: apiKeyIDs, Keys: keys}}), func(row db.StoreKeysLockRow) {
		stores[row.APIKeyID].holdKey(keyName{row.APIKeyID, row.Key})
	})
	find(g.batch, g.queries.StoreKeysGet(g.ctx, []db.StoreKeysGetParams{{AccountIds: accounts, ApiKeyIds: apiKeyIDs, Keys: keys}}), func(row db.StoreKeysGetRow) {
		stores[row.APIKeyID].useStored(db.IdempotencyKeysGetRow(row))
	})
}

// lockPets locks pets with their stock.
func (g *common) lockPets() {
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
	find(g.batch, g.queries.StorePetsLock(g.ctx, []db.StorePetsLockParams{wanted}), func(row db.StorePetsLockRow) {
		g.states[row.AccountID].usePet(db.PetsLockRow(row))
	})
}

// reserve reserves the ids of new orders of accounts.
func (g *common) reserve() {
	var orders []*State // of each order
	for _, w := range g.writes {
		if w.Creates == account.Orders && !w.Sandbox {
			orders = append(orders, g.states[w.AccountID])
		}
	}
	if len(orders) == 0 {
		return
	}
	next := 0
	find(g.batch, g.queries.IDsReserve(g.ctx, []db.IDsReserveParams{{Sequence: sequences[account.Orders], Number: int32(len(orders))}}), func(id int64) { //nolint:gosec // at most maxWrites
		s := orders[next]
		s.ids[account.Orders] = append(s.ids[account.Orders], id)
		next++
	})
}

// write writes what the stores have changed, and commits. It leaves out a store whose feed
// another transaction holds.
func (g *common) write(p *postgres.Pipeline) error {
	rows := db.StoresWriteParams{NoShipDate: noShipDate, Nonce: event.NewNonce()}
	confirms := int64(0)
	for _, s := range g.stores {
		if s.confirms {
			confirms = s.store.AccountID
		}
		if s.altered() && !s.spoiled {
			s.feedHeld = true // unless the statement returns it
			s.addTo(&rows)
		}
	}
	g.read = nil
	if confirms != 0 {
		g.await(g.queries.StandbyAwait(g.ctx, []int64{confirms}))
	}
	if len(rows.AccountIds) > 0 {
		find(g.batch, g.queries.StoresWrite(g.ctx, []db.StoresWriteParams{rows}), func(id int64) { g.states[id].feedHeld = false })
	}
	return p.Commit(g.ctx, g.readAll)
}

// altered reports whether the writes of a store have altered a row or made an event. A new
// response comes with an order.
func (s *State) altered() bool {
	for stock, pet := range s.changedPets() {
		if stock != nil || pet != nil {
			return true
		}
	}
	return len(s.orders.created)+len(s.events) > 0
}

// addTo adds what the writes of a store have changed to the rows that a group writes.
func (s *State) addTo(rows *db.StoresWriteParams) {
	id := s.store.AccountID
	rows.AccountIds, rows.NewEvents = append(rows.AccountIds, id), append(rows.NewEvents, int64(len(s.events)))
	rows.LastOrderIds = append(rows.LastOrderIds, s.newIDs().Order)
	for stock, pet := range s.changedPets() {
		if stock != nil {
			rows.StockAccounts, rows.StockPets = append(rows.StockAccounts, id), append(rows.StockPets, stock.ID)
			rows.Quantities, rows.Helds = append(rows.Quantities, stock.Stock.Quantity), append(rows.Helds, stock.Stock.Held)
		}
		if pet != nil {
			rows.PetAccounts, rows.PetIds = append(rows.PetAccounts, id), append(rows.PetIds, pet.ID)
			rows.CategoryIds = append(rows.CategoryIds, pet.CategoryID)
			rows.Names, rows.NameKeys = append(rows.Names, pet.Name), append(rows.NameKeys, pet.NameKey)
			rows.Statuses = append(rows.Statuses, string(pet.Stock.Status))
		}
	}
	for _, o := range s.orders.created {
		rows.OrderAccounts, rows.OrderIds, rows.OrderPets = append(rows.OrderAccounts, id), append(rows.OrderIds, o.ID), append(rows.OrderPets, o.PetID)
		rows.OrderQuantities, rows.ShipDates = append(rows.OrderQuantities, o.Quantity), append(rows.ShipDates, orNoShipDate(o.ShipDate))
	}
	for r := range s.newResponses() {
		rows.KeyAccounts, rows.KeyApiKeys, rows.Keys = append(rows.KeyAccounts, id), append(rows.KeyApiKeys, r.key.APIKeyID), append(rows.Keys, r.key.Key)
		rows.Fingerprints, rows.KeyStatuses = append(rows.Fingerprints, r.key.Fingerprint), append(rows.KeyStatuses, int32(r.Status)) //nolint:gosec // an HTTP status
		rows.Locations, rows.Bodies = append(rows.Locations, r.Location), append(rows.Bodies, r.Body)
	}
	for i, e := range s.events {
		rows.EventAccounts, rows.LaterEvents = append(rows.EventAccounts, id), append(rows.LaterEvents, int64(len(s.events)-1-i))
		rows.Types, rows.Subjects, rows.Documents = append(rows.Types, string(e.Type)), append(rows.Subjects, e.Subject), append(rows.Documents, string(e.Data))
	}
}

package groupcommit

import (
	"errors"
	"slices"
	"time"

	"petstore/db"
	"petstore/internal/account"
	"petstore/internal/stock"
)

// found are the results of a query that sqlc generates for batches.
type found[Row any] interface {
	Query(read func(int, []Row, error))
}

// find queues the reading of the rows of a query.
func find[Row any](g *group, results found[Row], use func(Row)) {
	g.reads = append(g.reads, func() (failed error) {
		results.Query(func(_ int, rows []Row, err error) {
			failed = errors.Join(failed, err)
			for _, row := range rows {
				use(row)
			}
		})
		return failed
	})
}

// await queues the reading of the result of a statement without rows.
func (g *group) await(results interface{ Exec(read func(int, error)) }) {
	g.reads = append(g.reads, func() (failed error) {
		results.Exec(func(_ int, err error) { failed = errors.Join(failed, err) })
		return failed
	})
}

// readAll reads the results of the queued statements.
func (g *group) readAll() error {
	reads := g.reads
	g.reads = nil
	for _, read := range reads {
		if err := read(); err != nil {
			return err
		}
	}
	return nil
}

// lock queues the statements that lock and read what the writes of a group of one store name.
func (s *State) lock() {
	g := s.group
	alone := g.writes[0].Alone
	creates := map[account.Kind]bool{}
	for _, w := range g.writes {
		creates[w.Creates] = true
	}
	if s.store.Sandbox {
		s.enterSandbox(creates)
	}
	g.lockKeys()
	s.lockCategories(g.idsOf(func(w *Write) int64 { return w.Category }), alone)
	s.lockPets(g.idsOf(func(w *Write) int64 { return w.Pet }), alone)
	s.readOrders(g.idsOf(func(w *Write) int64 { return w.Order }))
	if creates[account.Messages] {
		find(g, g.queries.TransactionTime(g.ctx, []int32{1}), func(now time.Time) { s.now = now })
	}
}

// idsOf returns the distinct ids that the writes name, sorted and without 0.
func (g *group) idsOf(id func(*Write) int64) []int64 {
	all := make([]int64, 0, len(g.writes))
	for _, w := range g.writes {
		if id := id(w.Write); id != 0 {
			all = append(all, id)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// enterSandbox locks the store of a sandbox, reads its newest ids, and counts the rows of the
// kinds that the writes create. Without the lock both may change.
func (s *State) enterSandbox(creates map[account.Kind]bool) {
	g, id := s.group, s.store.AccountID
	if g.kind == waitingGroup {
		g.await(g.queries.SandboxEnter(g.ctx, []int64{id}))
		s.entered = true // if the statement succeeds
	} else {
		find(g, g.queries.SandboxTryEnter(g.ctx, []int64{id}), func(locked bool) { s.entered = locked })
	}
	s.closed = true // if there is no row
	find(g, g.queries.SandboxRead(g.ctx, []int64{id}), func(row db.SandboxReadRow) {
		s.closed = row.Closed
		s.newest = map[account.Kind]int64{
			account.Categories: row.LastCategoryID, account.Pets: row.LastPetID, account.Orders: row.LastOrderID, account.Messages: row.LastMessageID,
		}
	})
	for kind := range creates {
		if kind == account.NoRows {
			continue
		}
		find(g, g.queries.SandboxCountRows(g.ctx, []db.SandboxCountRowsParams{{Kind: string(kind), AccountID: id, Small: smallID, Bound: account.MaxRows}}), func(row db.SandboxCountRowsRow) {
			s.stored[kind] = int(row.Rows)
		})
	}
}

// useStored adds the stored response of a key. If another request holds the key, it is
// replacing the response.
func (g *group) useStored(row db.StoreKeysGetRow) {
	held := g.keys[keyName{row.APIKeyID, row.Key}]
	switch {
	case held == nil:
	case row.Expired:
		held.expired = true
	default:
		held.fingerprint, held.response = row.Fingerprint, &Response{Status: int(row.Status), Location: row.Location, Body: row.Body}
	}
}

// lockCategories keeps categories from being deleted. A write that runs alone may change
// or delete its category, so it locks it for itself.
func (s *State) lockCategories(ids []int64, alone bool) {
	if len(ids) == 0 {
		return
	}
	g, account := s.group, s.store.AccountID
	if alone {
		find(g, g.queries.CategoryLock(g.ctx, []db.CategoryLockParams{{AccountID: account, ID: ids[0]}}), s.Categories.found)
		find(g, g.queries.CategoriesWithPets(g.ctx, []db.CategoriesWithPetsParams{{AccountID: account, Ids: ids}}), func(int64) { s.HasPets = true })
		return
	}
	if g.kind == waitingGroup {
		g.await(g.queries.CategoriesWait(g.ctx, []db.CategoriesWaitParams{{AccountID: account, Ids: ids}}))
	}
	find(g, g.queries.CategoriesLock(g.ctx, []db.CategoriesLockParams{{AccountID: account, Ids: ids}}), s.Categories.found)
}

// lockPets locks pets with their stock and orders.
func (s *State) lockPets(ids []int64, alone bool) {
	if len(ids) == 0 {
		return
	}
	g, account := s.group, s.store.AccountID
	if g.kind == waitingGroup {
		g.await(g.queries.PetsWait(g.ctx, []db.PetsWaitParams{{AccountID: account, Ids: ids}}))
	}
	find(g, g.queries.PetsLock(g.ctx, []db.PetsLockParams{{AccountID: account, Ids: ids}}), s.usePet)
	if alone {
		find(g, g.queries.PetsWithOrders(g.ctx, []db.PetsWithOrdersParams{{AccountID: account, PetIds: ids}}), func(int64) { s.HasOrders = true })
	}
}

// usePet adds a locked pet.
func (s *State) usePet(row db.PetsLockRow) {
	s.Pets.found(Pet{
		ID: row.ID, CategoryID: row.CategoryID, Name: row.Name, NameKey: row.NameKey,
		Stock: stock.State{Quantity: row.Quantity, Held: row.Held, Status: stock.Status(row.Status)},
	})
}

// readOrders reads orders. The locks of their pets keep them as they are.
func (s *State) readOrders(ids []int64) {
	if len(ids) == 0 {
		return
	}
	g := s.group
	find(g, g.queries.OrdersRead(g.ctx, []db.OrdersReadParams{{AccountID: s.store.AccountID, Ids: ids}}), func(row db.Order) {
		if _, locked := s.Pets.Get(row.PetID); locked {
			s.Orders.found(row)
		}
	})
}

// sequences are the sequences of the ids of new rows of accounts. Messages have UUIDs.
var sequences = map[account.Kind]string{
	account.Categories: "categories_id_seq",
	account.Pets:       "pets_id_seq",
	account.Orders:     "orders_id_seq",
}

// reserve reserves ids for new rows of accounts.
func (g *group) reserve() {
	numbers := map[account.Kind]int32{}
	for _, w := range g.writes {
		if sequences[w.Creates] != "" && !w.Sandbox {
			numbers[w.Creates]++
		}
	}
	for kind, number := range numbers {
		find(g, g.queries.IDsReserve(g.ctx, []db.IDsReserveParams{{Sequence: sequences[kind], Number: number}}), func(id int64) {
			g.ids[kind] = append(g.ids[kind], id)
		})
	}
}

package groupcommit

import (
	"context"
	"errors"
	"slices"
	"time"

	"petstore/db"
	"petstore/internal/account"
	"petstore/internal/postgres"
	"petstore/internal/stock"
)

// batch is the statements of the first step of a group, and how to read their results, in
// the same order.
type batch struct {
	ctx     context.Context //nolint:containedctx // of one call
	queries *db.Queries
	read    []func() error
}

// send sends the statements in one round trip, and reads their results.
func (b *batch) send(p *postgres.Pipeline) error {
	if err := p.Send(b.ctx); err != nil {
		return err
	}
	return b.readAll()
}

// readAll reads the results of the statements.
func (b *batch) readAll() error {
	for _, read := range b.read {
		if err := read(); err != nil {
			return err
		}
	}
	return nil
}

// locking is the first step of a group of one store. Its methods queue statements.
type locking struct {
	*State
	*batch
}

// lock locks what the writes name and reads it, in one round trip.
func (s *State) lock(ctx context.Context, p *postgres.Pipeline, writes []*Write) error {
	l := &locking{s, &batch{ctx: ctx, queries: db.New(p)}}
	creates := map[account.Kind]int{}
	for _, w := range writes {
		creates[w.Creates]++
	}
	delete(creates, account.NoRows)
	if len(writes) > 1 {
		limit := groupTimeout
		if l.waits {
			limit = waitingTimeout
		}
		l.limitStatements(limit)
	}
	if s.store.Sandbox {
		l.enterSandbox(creates)
	}
	l.lockKeys(writes)
	alone := writes[0].Alone
	l.lockCategories(ids(writes, func(w *Write) int64 { return w.Category }), alone)
	l.lockPets(ids(writes, func(w *Write) int64 { return w.Pet }), alone)
	l.readOrders(ids(writes, func(w *Write) int64 { return w.Order }))
	l.reserve(creates)
	return l.send(p)
}

// ids returns the distinct ids of the writes, sorted and without 0.
func ids(writes []*Write, id func(*Write) int64) []int64 {
	all := make([]int64, 0, len(writes))
	for _, w := range writes {
		if id := id(w); id != 0 {
			all = append(all, id)
		}
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// found are the results of a query that sqlc generates for batches.
type found[Row any] interface {
	Query(read func(int, []Row, error))
}

// find queues the reading of the rows of a query.
func find[Row any](b *batch, results found[Row], use func(Row)) {
	b.read = append(b.read, func() (failed error) {
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
func (b *batch) await(results interface{ Exec(read func(int, error)) }) {
	b.read = append(b.read, func() (failed error) {
		results.Exec(func(_ int, err error) { failed = errors.Join(failed, err) })
		return failed
	})
}

// limitStatements limits the statements of a group of several writes.
func (b *batch) limitStatements(limit time.Duration) {
	b.await(b.queries.StatementsLimit(b.ctx, []int64{limit.Milliseconds()}))
}

// enterSandbox locks the store of a sandbox, reads its newest ids, and counts the rows of the
// kinds that the writes create. Without the lock both may change.
func (l *locking) enterSandbox(creates map[account.Kind]int) {
	id := l.store.AccountID
	if l.waits {
		l.await(l.queries.SandboxEnter(l.ctx, []int64{id}))
		l.entered = true // if the statement succeeds
	} else {
		find(l.batch, l.queries.SandboxTryEnter(l.ctx, []int64{id}), func(locked bool) { l.entered = locked })
	}
	l.closed = true // if there is no row
	find(l.batch, l.queries.SandboxRead(l.ctx, []int64{id}), func(row db.SandboxReadRow) {
		l.closed = row.Closed
		l.newest = map[account.Kind]int64{
			account.Categories: row.LastCategoryID, account.Pets: row.LastPetID, account.Orders: row.LastOrderID, account.Messages: row.LastMessageID,
		}
	})
	for kind := range creates {
		find(l.batch, l.queries.SandboxCountRows(l.ctx, []db.SandboxCountRowsParams{{Kind: string(kind), AccountID: id, Small: smallID, Bound: account.MaxRows}}), func(row db.SandboxCountRowsRow) {
			l.stored[account.Kind(row.Kind)] = int(row.Rows)
		})
	}
}

// lockKeys locks the keys of the writes and reads their stored responses.
func (l *locking) lockKeys(writes []*Write) {
	var apiKeyIDs []int64
	var keys []string
	for _, w := range writes {
		if w.Key != nil {
			apiKeyIDs, keys = append(apiKeyIDs, w.Key.APIKeyID), append(keys, w.Key.Key)
		}
	}
	if len(keys) == 0 {
		return
	}
	find(l.batch, l.queries.IdempotencyKeysLock(l.ctx, []db.IdempotencyKeysLockParams{{AccountID: l.store.AccountID, ApiKeyIds: apiKeyIDs, Keys: keys}}), func(row db.IdempotencyKeysLockRow) {
		l.holdKey(keyName{row.APIKeyID, row.Key})
	})
	find(l.batch, l.queries.IdempotencyKeysGet(l.ctx, []db.IdempotencyKeysGetParams{{AccountID: l.store.AccountID, ApiKeyIds: apiKeyIDs, Keys: keys}}), l.useStored)
}

// useStored adds the stored response of a key. If another request holds the key, it is
// replacing the response.
func (s *State) useStored(row db.IdempotencyKeysGetRow) {
	held := s.keys[keyName{row.APIKeyID, row.Key}]
	switch {
	case held == nil:
	case row.Expired:
		held.expired = true
	default:
		held.response = &storedResponse{
			key:      Key{APIKeyID: row.APIKeyID, Key: row.Key, Fingerprint: row.Fingerprint},
			Response: Response{Status: int(row.Status), Location: row.Location, Body: row.Body},
		}
	}
}

// lockCategories keeps categories from being deleted. A write that runs alone may change
// or delete its category, so it locks it for itself.
func (l *locking) lockCategories(ids []int64, alone bool) {
	if len(ids) == 0 {
		return
	}
	account := l.store.AccountID
	use := func(row db.Category) { l.categories.found(row.ID, row) }
	if alone {
		find(l.batch, l.queries.CategoryLock(l.ctx, []db.CategoryLockParams{{AccountID: account, ID: ids[0]}}), use)
		find(l.batch, l.queries.CategoriesWithPets(l.ctx, []db.CategoriesWithPetsParams{{AccountID: account, Ids: ids}}), func(id int64) {
			l.withPets = append(l.withPets, id)
		})
		return
	}
	if l.waits {
		l.await(l.queries.CategoriesWait(l.ctx, []db.CategoriesWaitParams{{AccountID: account, Ids: ids}}))
	}
	find(l.batch, l.queries.CategoriesLock(l.ctx, []db.CategoriesLockParams{{AccountID: account, Ids: ids}}), use)
}

// lockPets locks pets with their stock and orders.
func (l *locking) lockPets(ids []int64, alone bool) {
	if len(ids) == 0 {
		return
	}
	account := l.store.AccountID
	if l.waits {
		l.await(l.queries.PetsWait(l.ctx, []db.PetsWaitParams{{AccountID: account, Ids: ids}}))
	}
	find(l.batch, l.queries.PetsLock(l.ctx, []db.PetsLockParams{{AccountID: account, Ids: ids}}), l.usePet)
	if alone {
		find(l.batch, l.queries.PetsWithOrders(l.ctx, []db.PetsWithOrdersParams{{AccountID: account, PetIds: ids}}), func(id int64) {
			l.withOrders = append(l.withOrders, id)
		})
	}
}

// usePet adds a locked pet.
func (s *State) usePet(row db.PetsLockRow) {
	s.pets.found(row.ID, Pet{
		ID: row.ID, CategoryID: row.CategoryID, Name: row.Name, NameKey: row.NameKey,
		Stock: stock.State{Quantity: row.Quantity, Held: row.Held, Status: stock.Status(row.Status)},
	})
}

// readOrders reads orders. The locks of their pets keep them as they are.
func (l *locking) readOrders(ids []int64) {
	if len(ids) == 0 {
		return
	}
	find(l.batch, l.queries.OrdersRead(l.ctx, []db.OrdersReadParams{{AccountID: l.store.AccountID, Ids: ids}}), func(row db.Order) {
		if _, locked := l.pets.get(row.PetID); locked {
			l.orders.found(row.ID, row)
		}
	})
}

// sequences are the sequences of the ids of new rows of accounts. Messages have UUIDs.
var sequences = map[account.Kind]string{
	account.Categories: "categories_id_seq",
	account.Pets:       "pets_id_seq",
	account.Orders:     "orders_id_seq",
}

// reserve reserves ids for new rows of an account, and reads the time of the transaction.
func (l *locking) reserve(creates map[account.Kind]int) {
	for kind, number := range creates {
		if kind == account.Messages {
			find(l.batch, l.queries.TransactionTime(l.ctx, []int32{1}), func(now time.Time) { l.now = now })
		}
		if kind == account.Messages || l.store.Sandbox {
			continue
		}
		find(l.batch, l.queries.IDsReserve(l.ctx, []db.IDsReserveParams{{Sequence: sequences[kind], Number: int32(number)}}), func(id int64) { //nolint:gosec // at most maxWrites
			l.ids[kind] = append(l.ids[kind], id)
		})
	}
}

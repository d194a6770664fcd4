package groupcommit

import (
	"context"
	"iter"
	"time"

	"petstore/db"
	"petstore/internal/event"
	"petstore/internal/postgres"
)

// noShipDate stands for NULL in an array of ship dates, which are before it.
var noShipDate = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)

// write queues the statements that write what the group has changed.
func (s *State) write(ctx context.Context, p *postgres.Pipeline) {
	queries := db.New(p)
	s.writeCategories(ctx, queries)
	s.createPets(ctx, queries)
	s.changePets(ctx, queries)
	s.writeOrders(ctx, queries)
	s.deletePets(ctx, queries)
	s.writeMessages(ctx, queries)
	if s.confirms {
		// The earlier transaction may have committed before the standby had it.
		queries.StandbyAwait(ctx, []int64{s.store.AccountID})
	}
	s.writeKeys(ctx, queries)
	event.Queue(ctx, queries, s.store.AccountID, s.events, s.newIDs()) // last, because writers wait for each other there
}

func (s *State) writeCategories(ctx context.Context, queries *db.Queries) {
	for _, c := range s.categories.created {
		queries.CategoryInsert(ctx, []db.CategoryInsertParams{{AccountID: s.store.AccountID, ID: c.ID, Name: c.Name, NameKey: c.NameKey, Description: c.Description}})
	}
	for _, id := range s.categories.changed {
		c := s.categories.current[id]
		queries.CategoryWrite(ctx, []db.CategoryWriteParams{{AccountID: s.store.AccountID, ID: c.ID, Name: c.Name, NameKey: c.NameKey, Description: c.Description}})
	}
	for _, id := range s.categories.deleted {
		queries.CategoryDelete(ctx, []db.CategoryDeleteParams{{AccountID: s.store.AccountID, ID: id}})
	}
}

func (s *State) createPets(ctx context.Context, queries *db.Queries) {
	if len(s.pets.created) == 0 {
		return
	}
	made := db.PetsInsertParams{AccountID: s.store.AccountID}
	for _, p := range s.pets.created {
		made.Ids = append(made.Ids, p.ID)
		made.CategoryIds = append(made.CategoryIds, p.CategoryID)
		made.Names = append(made.Names, p.Name)
		made.NameKeys = append(made.NameKeys, p.NameKey)
		made.Statuses = append(made.Statuses, string(p.Stock.Status))
	}
	queries.PetsInsert(ctx, []db.PetsInsertParams{made})
	queries.StockInsert(ctx, []db.StockInsertParams{{AccountID: s.store.AccountID, PetIds: made.Ids}})
}

// changePets writes the stock of the changed pets, and the pets whose own columns have
// changed.
func (s *State) changePets(ctx context.Context, queries *db.Queries) {
	stocks := db.StockWriteParams{AccountID: s.store.AccountID}
	pets := db.PetsWriteParams{AccountID: s.store.AccountID}
	for stock, pet := range s.changedPets() {
		if stock != nil {
			stocks.PetIds = append(stocks.PetIds, stock.ID)
			stocks.Quantities = append(stocks.Quantities, stock.Stock.Quantity)
			stocks.Helds = append(stocks.Helds, stock.Stock.Held)
		}
		if pet != nil {
			pets.Ids = append(pets.Ids, pet.ID)
			pets.CategoryIds = append(pets.CategoryIds, pet.CategoryID)
			pets.Names = append(pets.Names, pet.Name)
			pets.NameKeys = append(pets.NameKeys, pet.NameKey)
			pets.Statuses = append(pets.Statuses, string(pet.Stock.Status))
		}
	}
	if len(stocks.PetIds) > 0 {
		queries.StockWrite(ctx, []db.StockWriteParams{stocks})
	}
	if len(pets.Ids) > 0 {
		queries.PetsWrite(ctx, []db.PetsWriteParams{pets})
	}
}

// changedPets yields each changed pet twice: if its stock has changed and if its own columns
// have. Otherwise it yields nil.
func (s *State) changedPets() iter.Seq2[*Pet, *Pet] {
	own := func(p Pet) Pet {
		p.Stock.Quantity, p.Stock.Held = 0, 0
		return p
	}
	return func(yield func(stock, pet *Pet) bool) {
		for _, id := range s.pets.changed {
			before, after := s.pets.before[id], s.pets.current[id]
			var stock, pet *Pet
			if before.Stock.Quantity != after.Stock.Quantity || before.Stock.Held != after.Stock.Held {
				stock = &after
			}
			if own(before) != own(after) {
				pet = &after
			}
			if !yield(stock, pet) {
				return
			}
		}
	}
}

func (s *State) deletePets(ctx context.Context, queries *db.Queries) {
	for _, id := range s.pets.deleted {
		queries.StockDelete(ctx, []db.StockDeleteParams{{AccountID: s.store.AccountID, PetID: id}})
		queries.PetDelete(ctx, []db.PetDeleteParams{{AccountID: s.store.AccountID, ID: id}})
	}
}

func (s *State) writeOrders(ctx context.Context, queries *db.Queries) {
	if len(s.orders.created) > 0 {
		placed := db.OrdersInsertParams{AccountID: s.store.AccountID, NoShipDate: noShipDate}
		for _, o := range s.orders.created {
			placed.Ids = append(placed.Ids, o.ID)
			placed.PetIds = append(placed.PetIds, o.PetID)
			placed.Quantities = append(placed.Quantities, o.Quantity)
			placed.ShipDates = append(placed.ShipDates, orNoShipDate(o.ShipDate))
		}
		queries.OrdersInsert(ctx, []db.OrdersInsertParams{placed})
	}
	if len(s.orders.changed) > 0 {
		changed := db.OrdersWriteParams{AccountID: s.store.AccountID, NoShipDate: noShipDate}
		for _, id := range s.orders.changed {
			o := s.orders.current[id]
			changed.Ids = append(changed.Ids, o.ID)
			changed.ShipDates = append(changed.ShipDates, orNoShipDate(o.ShipDate))
			changed.Completes = append(changed.Completes, o.Complete)
		}
		queries.OrdersWrite(ctx, []db.OrdersWriteParams{changed})
	}
	if deleted := s.orders.deleted; len(deleted) > 0 {
		queries.OrdersDelete(ctx, []db.OrdersDeleteParams{{AccountID: s.store.AccountID, Ids: deleted}})
	}
}

func orNoShipDate(at *time.Time) time.Time {
	if at == nil {
		return noShipDate
	}
	return *at
}

func (s *State) writeMessages(ctx context.Context, queries *db.Queries) {
	if len(s.messages) == 0 {
		return
	}
	sent := db.MessagesInsertParams{AccountID: s.store.AccountID}
	for _, m := range s.messages {
		sent.Ids, sent.Messages = append(sent.Ids, m.id), append(sent.Messages, m.text)
	}
	queries.MessagesInsert(ctx, []db.MessagesInsertParams{sent})
}

// writeKeys stores the new responses.
func (s *State) writeKeys(ctx context.Context, queries *db.Queries) {
	kept := db.IdempotencyKeysInsertParams{AccountID: s.store.AccountID}
	for r, held := range s.newResponses() {
		if held.expired {
			queries.IdempotencyKeyDelete(ctx, []db.IdempotencyKeyDeleteParams{{AccountID: s.store.AccountID, APIKeyID: r.key.APIKeyID, Key: r.key.Key}})
		}
		kept.ApiKeyIds = append(kept.ApiKeyIds, r.key.APIKeyID)
		kept.Keys = append(kept.Keys, r.key.Key)
		kept.Fingerprints = append(kept.Fingerprints, r.key.Fingerprint)
		kept.Statuses = append(kept.Statuses, int32(r.Status)) //nolint:gosec // an HTTP status
		kept.Locations = append(kept.Locations, r.Location)
		kept.Bodies = append(kept.Bodies, r.Body)
	}
	if len(kept.Keys) > 0 {
		queries.IdempotencyKeysInsert(ctx, []db.IdempotencyKeysInsertParams{kept})
	}
}

// newResponses yields the responses that the group has made.
func (s *State) newResponses() iter.Seq2[*storedResponse, *heldKey] {
	return func(yield func(*storedResponse, *heldKey) bool) {
		for _, held := range s.keys {
			if r := held.response; r != nil && r.isNew && !yield(r, held) {
				return
			}
		}
	}
}

package groupcommit

import (
	"context"
	"time"

	"petstore/db"
	"petstore/internal/event"
	"petstore/internal/postgres"
)

// noShipDate stands for NULL in an array of ship dates, which are before it.
var noShipDate = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)

func orNoShipDate(at *time.Time) time.Time {
	if at == nil {
		return noShipDate
	}
	return *at
}

// write queues the statements that write what a group of one store has changed.
func (s *State) write(ctx context.Context, p *postgres.Pipeline) {
	queries := db.New(p)
	var rows db.StoresWriteParams
	s.addTo(&rows)
	s.group.addResponses(&rows)
	s.writeCategories(ctx, queries)
	s.writePets(ctx, queries, &rows)
	s.writeOrders(ctx, queries, &rows)
	s.deletePets(ctx, queries)
	if len(s.messages.Ids) > 0 {
		s.messages.AccountID = s.store.AccountID
		queries.MessagesInsert(ctx, []db.MessagesInsertParams{s.messages})
	}
	if s.group.confirms != nil {
		// The earlier transaction may have committed before the standby had it.
		queries.StandbyAwait(ctx, []int64{s.store.AccountID})
	}
	s.writeResponses(ctx, queries, &rows)
	event.Queue(ctx, queries, s.store.AccountID, s.events, s.newIDs()) // last, because writers wait for each other there
}

func (s *State) writeCategories(ctx context.Context, queries *db.Queries) {
	for _, c := range s.Categories.created {
		queries.CategoryInsert(ctx, []db.CategoryInsertParams{{AccountID: s.store.AccountID, ID: c.ID, Name: c.Name, NameKey: c.NameKey, Description: c.Description}})
	}
	for id := range s.Categories.before {
		c := s.Categories.current[id]
		queries.CategoryWrite(ctx, []db.CategoryWriteParams{{AccountID: s.store.AccountID, ID: c.ID, Name: c.Name, NameKey: c.NameKey, Description: c.Description}})
	}
	for _, id := range s.Categories.deleted {
		queries.CategoryDelete(ctx, []db.CategoryDeleteParams{{AccountID: s.store.AccountID, ID: id}})
	}
}

// writePets creates pets and their stock, and writes the changed ones of both.
func (s *State) writePets(ctx context.Context, queries *db.Queries, rows *db.StoresWriteParams) {
	made := db.PetsInsertParams{AccountID: s.store.AccountID}
	for _, p := range s.Pets.created {
		made.Ids = append(made.Ids, p.ID)
		made.CategoryIds = append(made.CategoryIds, p.CategoryID)
		made.Names = append(made.Names, p.Name)
		made.NameKeys = append(made.NameKeys, p.NameKey)
		made.Statuses = append(made.Statuses, string(p.Stock.Status))
	}
	if len(made.Ids) > 0 {
		queries.PetsInsert(ctx, []db.PetsInsertParams{made})
		queries.StockInsert(ctx, []db.StockInsertParams{{AccountID: s.store.AccountID, PetIds: made.Ids}})
	}
	if len(rows.StockPets) > 0 {
		queries.StockWrite(ctx, []db.StockWriteParams{{AccountID: s.store.AccountID, PetIds: rows.StockPets, Quantities: rows.Quantities, Helds: rows.Helds}})
	}
	if len(rows.PetIds) > 0 {
		queries.PetsWrite(ctx, []db.PetsWriteParams{{
			AccountID: s.store.AccountID, Ids: rows.PetIds, CategoryIds: rows.CategoryIds, Names: rows.Names, NameKeys: rows.NameKeys, Statuses: rows.Statuses,
		}})
	}
}

func (s *State) writeOrders(ctx context.Context, queries *db.Queries, rows *db.StoresWriteParams) {
	if len(rows.OrderIds) > 0 {
		queries.OrdersInsert(ctx, []db.OrdersInsertParams{{
			AccountID: s.store.AccountID, Ids: rows.OrderIds, PetIds: rows.OrderPets, Quantities: rows.OrderQuantities, ShipDates: rows.ShipDates, NoShipDate: noShipDate,
		}})
	}
	changed := db.OrdersWriteParams{AccountID: s.store.AccountID, NoShipDate: noShipDate}
	for id := range s.Orders.before {
		o := s.Orders.current[id]
		changed.Ids = append(changed.Ids, o.ID)
		changed.ShipDates = append(changed.ShipDates, orNoShipDate(o.ShipDate))
		changed.Completes = append(changed.Completes, o.Complete)
	}
	if len(changed.Ids) > 0 {
		queries.OrdersWrite(ctx, []db.OrdersWriteParams{changed})
	}
	if deleted := s.Orders.deleted; len(deleted) > 0 {
		queries.OrdersDelete(ctx, []db.OrdersDeleteParams{{AccountID: s.store.AccountID, Ids: deleted}})
	}
}

func (s *State) deletePets(ctx context.Context, queries *db.Queries) {
	for _, id := range s.Pets.deleted {
		queries.StockDelete(ctx, []db.StockDeleteParams{{AccountID: s.store.AccountID, PetID: id}})
		queries.PetDelete(ctx, []db.PetDeleteParams{{AccountID: s.store.AccountID, ID: id}})
	}
}

// writeResponses stores the new responses, instead of expired ones that the sweep has not deleted yet.
func (s *State) writeResponses(ctx context.Context, queries *db.Queries, rows *db.StoresWriteParams) {
	for name, held := range s.group.keys {
		if held.by != nil && held.expired {
			queries.IdempotencyKeyDelete(ctx, []db.IdempotencyKeyDeleteParams{{AccountID: s.store.AccountID, APIKeyID: name.APIKeyID, Key: name.Key}})
		}
	}
	if len(rows.Keys) > 0 {
		queries.IdempotencyKeysInsert(ctx, []db.IdempotencyKeysInsertParams{{
			AccountID: s.store.AccountID, ApiKeyIds: rows.KeyApiKeys, Keys: rows.Keys, Fingerprints: rows.Fingerprints,
			Statuses: rows.KeyStatuses, Locations: rows.Locations, Bodies: rows.Bodies,
		}})
	}
}

package api

import (
	"context"

	"github.com/gin-gonic/gin"

	"petstore/db"
	"petstore/internal/event"
	"petstore/internal/gate"
	"petstore/internal/groupcommit"
	"petstore/internal/httpjson"
	"petstore/internal/stock"
)

// inventoryItem is the InventoryItem schema of the spec.
type inventoryItem struct {
	PetID    int64  `json:"petId"`
	Quantity int64  `json:"quantity"`
	Status   string `json:"status"`
}

// stockOf returns the entry of a pet of a state.
func stockOf(p groupcommit.Pet) inventoryItem {
	return inventoryItem{PetID: p.ID, Quantity: p.Stock.Quantity, Status: string(p.Stock.Status)}
}

func (s *Server) getInventoryItem(c *gin.Context, id int64) error {
	row, err := s.reads.InventoryGet(c.Request.Context(), db.InventoryGetParams{AccountID: gate.Caller(c).AccountID, PetID: id})
	if err != nil {
		return orNotFound(err, errInventoryNotFound)
	}
	return writeResource(c, inventoryItem(row))
}

func (s *Server) setInventory(c *gin.Context, id int64) error {
	in := s.decode(c, required("quantity"), readOnly("petId", "status"))
	quantity := in.Integer("quantity", 0, maxStockQuantity)
	if err := in.Err(); err != nil {
		return err
	}
	request := c.Request
	return s.commit(c, groupcommit.Write{Pet: id, Decide: func(state *groupcommit.State) (groupcommit.Response, error) {
		pet, known := state.Pets.Get(id)
		if !known {
			return refused(errInventoryNotFound)
		}
		if err := checkTag(request, stockOf(pet)); err != nil {
			return refused(err)
		}
		before := pet
		pet.Stock = pet.Stock.Restock(*quantity)
		state.Pets.Set(pet)
		if err := emit(state, event.InventoryUpdated, itemPath("/store/inventory", pet.ID), affectedPet(before, pet)); err != nil {
			return refused(err)
		}
		return updated(stockOf(pet))
	}})
}

// getInventorySummary counts the pets of each status.
func (s *Server) getInventorySummary(c *gin.Context) error {
	ctx := c.Request.Context()
	payer := gate.Caller(c).Payer()
	if err := s.gate.Limits.Counts.Take(ctx, payer, 1); err != nil {
		return err
	}
	defer s.gate.Limits.Counts.Give(payer, 1)
	rows, err := s.reads.InventorySummary(ctx, gate.Caller(c).AccountID)
	if err != nil {
		return err
	}
	summary := struct {
		Available int64 `json:"available"`
		Pending   int64 `json:"pending"`
		Sold      int64 `json:"sold"`
	}{}
	for _, row := range rows {
		switch stock.Status(row.Status) {
		case stock.Available:
			summary.Available = row.Pets
		case stock.Pending:
			summary.Pending = row.Pets
		case stock.Sold:
			summary.Sold = row.Pets
		}
	}
	return httpjson.WriteUntagged(c.Writer, c.Request, summary)
}

func (s *Server) listInventory(c *gin.Context) error {
	params := readParams(c)
	statuses := params.Enums("status", petStatuses...)
	low := params.Bool("low")
	p := newPage(c, params, defaultLimit, byPetIDOnly)
	return writePage(s, c, params, p, list[inventoryItem, inventoryItem]{
		find: func(ctx context.Context) ([]inventoryItem, error) {
			return s.findInventory(ctx, statuses, low, p)
		},
		count: func(ctx context.Context) (int64, error) {
			return s.countInventory(ctx, p.account, statuses, low)
		},
		inVain:   low != nil && (!*low || len(statuses) > 0), // inventory_low_idx has low entries of any status
		item:     func(item inventoryItem) inventoryItem { return item },
		cursorOf: func(item inventoryItem) httpjson.Position { return httpjson.Position{ID: item.PetID} },
	})
}

// findInventory runs the query that fits the index of the filter.
func (s *Server) findInventory(ctx context.Context, statuses []string, low *bool, p *page) ([]inventoryItem, error) {
	switch {
	case low != nil && *low:
		rows, err := s.reads.InventoryListLow(ctx, db.InventoryListLowParams{AccountID: p.account, Statuses: orAllStatuses(statuses), AfterID: p.after.ID, PageSize: p.queryLimit()})
		return inventoryItems(rows), err
	case low == nil && len(statuses) > 0:
		rows, err := s.reads.InventoryListOfStatus(ctx, db.InventoryListOfStatusParams{AccountID: p.account, Statuses: statuses, AfterID: p.after.ID, PageSize: p.queryLimit()})
		return inventoryItems(rows), err
	default:
		rows, err := s.reads.InventoryList(ctx, db.InventoryListParams{AccountID: p.account, Lows: boolOrBoth(low), Statuses: orAllStatuses(statuses), AfterID: p.after.ID, PageSize: p.queryLimit()})
		return inventoryItems(rows), err
	}
}

// countInventory counts the entries of all pages.
func (s *Server) countInventory(ctx context.Context, accountID int64, statuses []string, low *bool) (int64, error) {
	if low == nil { // each pet has one entry
		return s.planned.PetCount(ctx, db.PetCountParams{AccountID: accountID, Statuses: statuses})
	}
	return s.planned.InventoryCount(ctx, db.InventoryCountParams{AccountID: accountID, Low: *low, Statuses: statuses})
}

// boolOrBoth returns the values that match a filter.
func boolOrBoth(filter *bool) []bool {
	if filter == nil {
		return []bool{false, true}
	}
	return []bool{*filter}
}

// inventoryItems converts the rows of any of the queries.
func inventoryItems[Row db.InventoryListRow | db.InventoryListOfStatusRow | db.InventoryListLowRow](rows []Row) []inventoryItem {
	items := make([]inventoryItem, len(rows))
	for i, row := range rows {
		items[i] = inventoryItem(row)
	}
	return items
}

package api_test

import (
	"testing"

	"petstore/db"
	"petstore/internal/pgtest"
	"petstore/internal/tools/need"
)

func TestInventorySummary(t *testing.T) {
	t.Parallel()
	p := start(t)
	for _, step := range []struct {
		add  []string // statuses of pets to add
		want map[string]int
	}{
		{nil, map[string]int{"available": 0, "pending": 0, "sold": 0}},
		{[]string{"sold"}, map[string]int{"available": 0, "pending": 0, "sold": 1}},
		{[]string{"pending", "available", "sold"}, map[string]int{"available": 1, "pending": 1, "sold": 2}},
	} {
		for _, status := range step.add {
			p.stage(on(status, 0))
		}
		got := decode[map[string]int](p.get("/store/inventory/summary").want(200))
		need.Same(t, step.want, got, "after %v", step.add)
	}
}

// TestOrdersUpdateInventoryHOT: an order is a HOT update of inventory, unless the
// pet becomes low or stops being low.
func TestOrdersUpdateInventoryHOT(t *testing.T) {
	t.Parallel()
	pgtest.Not(t, pgtest.Citus, "the workers count updates")
	p := startAlone(t)
	petID := p.newPet("Rex", 1000)
	tx := pgtest.Begin(t, p.db)
	order := db.StockWriteParams{AccountID: p.accountID(), PetIds: []int64{petID}, Quantities: []int64{995}, Helds: []int64{5}}
	cancellation := db.StockWriteParams{AccountID: p.accountID(), PetIds: []int64{petID}, Quantities: []int64{1000}, Helds: []int64{0}}
	db.New(tx).StockWrite(t.Context(), []db.StockWriteParams{order, cancellation}).Exec(func(_ int, err error) {
		need.OK(t, err)
	})
	var updated, hot int
	err := tx.QueryRow(t.Context(), `
		SELECT pg_stat_get_xact_tuples_updated('inventory'::regclass), pg_stat_get_xact_tuples_hot_updated('inventory'::regclass)`).Scan(&updated, &hot)
	if err != nil || updated != 2 || hot != 2 {
		t.Errorf("%d updates of inventory, %d of them HOT, error %v; want 2 and 2", updated, hot, err)
	}
}

package api_test

import (
	"fmt"
	"testing"

	"petstore/db"
	"petstore/internal/pgtest"
	"petstore/internal/tools/need"
)

func TestStockingRules(t *testing.T) {
	t.Parallel()
	checkRules(t, []rule{
		{"available, the same", on("available", 2, 4), stocking(2), 200, "", on("available", 2, 4)},
		{"pending", on("pending", 0, 4), stocking(5), 200, "", on("available", 5, 4)},
		{"sold with stock and units held", on("sold", 2, 4), stocking(5), 200, "", on("available", 5, 4)},
		{"the most", on("sold", 0), stocking(1_000_000_000), 200, "", on("available", 1_000_000_000)},

		{"to 0 while units are held", on("available", 2, 4), stocking(0), 200, "", on("pending", 0, 4)},
		{"to 0, pending, while units are held", on("pending", 2, 4), stocking(0), 200, "", on("pending", 0, 4)},
		{"to 0, sold, while units are held", on("sold", 2, 4), stocking(0), 200, "", on("sold", 0, 4)},
	})
}

// TestStatusRules: clients may set any status except pending on a sold pet, with
// any stock. The units do not change.
func TestStatusRules(t *testing.T) {
	t.Parallel()
	statuses := []string{"available", "pending", "sold"}
	var rules []rule
	for _, from := range statuses {
		for _, to := range statuses {
			for _, before := range []shelf{on(from, 0), on(from, 2, 4)} {
				r := rule{fmt.Sprintf("from %v to %s", before, to), before, moving(to), 200, "", shelf{to, before.Stock, before.Held}}
				if from == "sold" && to == "pending" {
					r.status, r.code, r.after = 409, "invalid_transition", before
				}
				rules = append(rules, r)
			}
		}
	}
	checkRules(t, rules)
}

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

package api

import (
	"context"
	"slices"
	"time"

	"petstore/db"
	"petstore/internal/coalesce"
)

// Requests that would wait for each other in the database anyway go to it
// together; docs/performance.md says what that buys.

// parallelReads is how many statements are under way at once that read single
// pets, or the same page. With a second one fewer reads share each, and the
// reads of 16 connections were a tenth slower.
const parallelReads = 1

// newPetReader joins the reads of single pets. A pet that is not there is nil.
func newPetReader(queries *db.Queries, timeout time.Duration) *coalesce.Coalescer[struct{}, int64, *db.Pet] {
	return coalesce.New(parallelReads, timeout, func(ctx context.Context, _ struct{}, ids []int64) ([]*db.Pet, error) {
		rows, err := queries.PetGetMany(ctx, ids)
		if err != nil {
			return nil, err
		}
		pets := make([]*db.Pet, len(ids))
		for i, id := range ids {
			if at := slices.IndexFunc(rows, func(row db.Pet) bool { return row.ID == id }); at >= 0 {
				pets[i] = &rows[at]
			}
		}
		return pets, nil
	})
}

// newOrderPlacer joins the orders of one pet: each holds the lock on its stock
// until its commit is on disk, so that they cannot but follow each other. They
// are decided in the order in which they came, each for itself. The caller retries.
func newOrderPlacer(queries *db.Queries, timeout time.Duration) *coalesce.Coalescer[int64, db.OrderPlaceParams, db.OrderPlaceRow] {
	return coalesce.New(1, timeout, func(ctx context.Context, petID int64, orders []db.OrderPlaceParams) ([]db.OrderPlaceRow, error) {
		if len(orders) == 1 {
			row, err := queries.OrderPlace(ctx, orders[0])
			return []db.OrderPlaceRow{row}, err
		}
		all := db.OrderPlaceManyParams{PetID: petID, NoShipDate: beyondShipDates}
		for _, order := range orders {
			shipDate := beyondShipDates
			if order.ShipDate != nil {
				shipDate = *order.ShipDate
			}
			all.Quantities, all.ShipDates = append(all.Quantities, order.Quantity), append(all.ShipDates, shipDate)
		}
		placed, err := queries.OrderPlaceMany(ctx, all)
		if err != nil {
			return nil, err
		}
		rows := make([]db.OrderPlaceRow, len(orders)) // of a pet that is not known, where none is placed
		for i, row := range placed {
			rows[i] = db.OrderPlaceRow{ID: row.ID, ShipDate: row.ShipDate, PetKnown: true, PetStatus: row.PetStatus}
		}
		return rows, nil
	})
}

// newPageMaker joins requests for the same page of the same list: any of them
// can make it for all. The key must say all that the page depends on.
func newPageMaker(timeout time.Duration) *coalesce.Coalescer[string, func(context.Context) (madePage, error), madePage] {
	return coalesce.New(parallelReads, timeout, func(ctx context.Context, _ string, makers []func(context.Context) (madePage, error)) ([]madePage, error) {
		made, err := makers[0](ctx)
		return slices.Repeat([]madePage{made}, len(makers)), err
	})
}

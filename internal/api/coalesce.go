package api

import (
	"context"
	"slices"

	"petstore/db"
	"petstore/internal/coalesce"
)

// Requests that would wait for each other in the database share a statement.
// docs/performance.md says how much faster that is.

// sharedReads are the limits of statements that read single pets, or the same page.
//
// One is under way at a time. With a second one fewer reads share each, and the
// reads of 16 connections were a tenth slower. A statement that hangs, for example
// because its backend is frozen, does not stop the reads after it: up to two more
// may run beside it, for all pages together. A pool has 12 connections by default, so
// a locked table leaves most of them to other requests.
var sharedReads = coalesce.Limits{Parallel: 1, Spare: 2}

// maxInputs is the maximum number of pets that one statement reads, or of orders
// that it places.
const maxInputs = 100

// newPetReader shares the reads of single pets. A pet that does not exist is nil.
func newPetReader(queries *db.Queries) *coalesce.Coalescer[struct{}, int64, *db.Pet] {
	limits := sharedReads
	limits.Inputs = maxInputs
	return coalesce.New(limits, func(ctx context.Context, _ struct{}, ids []int64) ([]*db.Pet, error) {
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

// newOrderPlacer shares the statements that place orders of one pet. Each order
// holds the lock on the stock until its commit is on disk, so one statement at a
// time is under way: a second one would only wait for the lock of the first. The
// orders of a statement are decided one after the other, in the order of arrival.
// The caller retries.
//
// A client that leaves cancels no statement, since the context of a write does not
// end with its client.
func newOrderPlacer(queries *db.Queries) *coalesce.Coalescer[int64, db.OrderPlaceParams, db.OrderPlaceRow] {
	return coalesce.New(coalesce.Limits{Parallel: 1, Inputs: maxInputs}, func(ctx context.Context, petID int64, orders []db.OrderPlaceParams) ([]db.OrderPlaceRow, error) {
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

// newPageReader shares the reading of a page among requests for the same page of the
// same list. The key must name everything on which the page depends.
func newPageReader() *coalesce.Coalescer[string, func(context.Context) (encodedPage, error), encodedPage] {
	return coalesce.New(sharedReads, firstForAll[encodedPage])
}

// newCounter shares exact counts of the same items. A count may take longer than
// 250 ms because there is much to count, so a second one never begins beside it.
func newCounter() *coalesce.Coalescer[string, func(context.Context) (int64, error), int64] {
	return coalesce.New(coalesce.Limits{Parallel: 1}, firstForAll[int64])
}

// firstForAll calls the first of some functions that all do the same.
func firstForAll[Out any](ctx context.Context, _ string, functions []func(context.Context) (Out, error)) ([]Out, error) {
	out, err := functions[0](ctx)
	return slices.Repeat([]Out{out}, len(functions)), err
}

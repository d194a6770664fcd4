package api

import (
	"context"
	"strconv"
	"time"

	"github.com/gin-gonic/gin"

	"petstore/db"
	"petstore/internal/gate"
	"petstore/internal/httpjson"
	"petstore/internal/postgres"
)

// orderFilter is the filter of a list of orders. A nil field matches all.
type orderFilter struct {
	account  int64
	petID    *int64
	complete *bool
	shipFrom *time.Time // inclusive
	shipTo   *time.Time // exclusive
}

// The range of ship dates: the years 1 to 9999.
var (
	earliestShipDate = time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC)
	beyondShipDates  = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)
)

// shipping reports whether the filter has a range of ship dates.
func (f orderFilter) shipping() bool { return f.shipFrom != nil || f.shipTo != nil }

// shipDates returns the range of ship dates. An open end is the end of all dates.
func (f orderFilter) shipDates() (from, to time.Time) {
	from, to = earliestShipDate, beyondShipDates
	if f.shipFrom != nil {
		from = *f.shipFrom
	}
	if f.shipTo != nil {
		to = *f.shipTo
	}
	return from, to
}

func (s *Server) listOrders(c *gin.Context) error {
	params := readParams(c)
	filter := orderFilter{
		account:  gate.Caller(c).AccountID,
		petID:    params.ID("petId"),
		complete: params.Bool("complete"),
		shipFrom: params.Time("shipDateFrom"),
		shipTo:   params.Time("shipDateTo"),
	}
	p := newPage(c, params, defaultLimit, byIDOrShipAt)
	from, to := filter.shipDates()
	p.startWithin(keyOfTime(from), keyOfTime(to))
	return writePage(s, c, params, p, list[db.Order, order]{
		find: func(ctx context.Context) ([]db.Order, error) {
			return s.findOrders(ctx, filter, p)
		},
		count: func(ctx context.Context) (int64, error) {
			return s.countOrders(ctx, filter)
		},
		inVain:   filter.petID != nil && (filter.complete != nil || filter.shipping()), // orders_pet_idx has neither
		item:     orderFrom,
		cursorOf: func(row db.Order) httpjson.Position { return orderPosition(row, p) },
	})
}

// orderPosition returns the position of an order in the sort of a page.
func orderPosition(row db.Order, p *page) httpjson.Position {
	if p.byID() {
		return httpjson.Position{ID: row.ID}
	}
	return httpjson.Position{Key: keyOfTime(*row.ShipDate), ID: row.ID}
}

// keyOfTime returns a time as the key of a position, in microseconds of Unix time.
func keyOfTime(at time.Time) string { return strconv.FormatInt(at.UnixMicro(), 10) }

// findOrders runs the query that fits the index of the filter.
func (s *Server) findOrders(ctx context.Context, f orderFilter, p *page) ([]db.Order, error) {
	id, size := p.after.ID, p.queryLimit()
	switch {
	case f.shipping():
		return s.findOrdersShipping(ctx, f, p)
	case f.petID != nil:
		return s.sorted(p.sort).OrderListOfPet(ctx, db.OrderListOfPetParams{AccountID: f.account, PetID: *f.petID, Completes: boolOrBoth(f.complete), AfterID: id, PageSize: size})
	case f.complete != nil:
		return s.sorted(p.sort).OrderListComplete(ctx, db.OrderListCompleteParams{AccountID: f.account, Complete: *f.complete, AfterID: id, PageSize: size})
	default:
		return s.sorted(p.sort).OrderList(ctx, db.OrderListParams{AccountID: f.account, AfterID: id, PageSize: size})
	}
}

// findOrdersShipping lists orders within a range of ship dates, sorted by ship date.
func (s *Server) findOrdersShipping(ctx context.Context, f orderFilter, p *page) ([]db.Order, error) {
	from, to := f.shipDates()
	after, err := strconv.ParseInt(p.after.Key, 10, 64)
	if err != nil {
		return nil, err // a bug: keyOfTime made the key
	}
	return db.New(sortedBy{plannedByValues{postgres.Reads{DB: s.options.DB}}, []string{p.sort}}).OrderListShipping(ctx, db.OrderListShippingParams{
		AccountID: f.account, PetID: f.petID, Completes: boolOrBoth(f.complete), FromDate: from, UntilDate: to, AfterDate: time.UnixMicro(after), AfterID: p.after.ID, PageSize: p.queryLimit(),
	})
}

// countOrders counts the orders of all pages.
func (s *Server) countOrders(ctx context.Context, f orderFilter) (int64, error) {
	return s.planned.OrderCount(ctx, db.OrderCountParams{AccountID: f.account, PetID: f.petID, Complete: f.complete, ShipDateFrom: f.shipFrom, ShipDateTo: f.shipTo})
}

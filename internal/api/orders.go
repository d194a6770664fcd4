package api

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/gin-gonic/gin"

	"petstore/db"
	"petstore/internal/httpjson"
)

// order is the Order schema of the spec.
type order struct {
	ID       int64 `json:"id"`
	PetID    int64 `json:"petId"`
	Quantity int64 `json:"quantity"`
	// omitzero would leave out the first moment of the year 1 too.
	ShipDate *time.Time `json:"shipDate,omitempty"`
	Complete bool       `json:"complete"`
}

func orderFrom(row db.Order) order {
	return order{ID: row.ID, PetID: row.PetID, Quantity: row.Quantity, ShipDate: inUTC(row.ShipDate), Complete: row.Complete}
}

func inUTC(at *time.Time) *time.Time {
	if at == nil {
		return nil
	}
	utc := at.UTC()
	return &utc
}

func (s *Server) placeOrder(c *gin.Context) error {
	in := s.decode(c, required("petId"), readOnly("id", "complete"))
	petID, quantity, shipDate := in.ID("petId"), in.Integer("quantity", 1, maxOrderQuantity), in.Time("shipDate")
	if err := in.Err(); err != nil {
		return err
	}
	placed := order{PetID: *petID, Quantity: 1}
	if quantity != nil {
		placed.Quantity = *quantity
	}
	return s.create(c, in, func(ctx context.Context, queries *db.Queries) (created, error) {
		row, err := s.place(ctx, queries, db.OrderPlaceParams{
			PetID:    placed.PetID,
			Quantity: placed.Quantity,
			ShipDate: shipDate,
		})
		switch {
		case err != nil:
			return created{}, err
		case !row.PetKnown:
			return created{}, errUnknownPet
		case row.PetStatus != statusAvailable:
			return created{}, errPetNotAvailable
		case row.ID == 0:
			return created{}, errInsufficientStock
		}
		placed.ID, placed.ShipDate = row.ID, inUTC(row.ShipDate)
		return created{http.StatusCreated, itemPath("/store/orders", placed.ID), placed}, nil
	})
}

// place places an order: in the transaction of queries, if that is what they
// run in, and else together with the orders of the same pet that wait.
func (s *Server) place(ctx context.Context, queries *db.Queries, order db.OrderPlaceParams) (db.OrderPlaceRow, error) {
	if queries != s.writes {
		return queries.OrderPlace(ctx, order)
	}
	return s.orders.Do(ctx, order.PetID, order)
}

func (s *Server) getOrder(c *gin.Context) error {
	params := readParams(c)
	id := params.PathID("orderId")
	if err := params.Err(); err != nil {
		return err
	}
	row, err := s.queries.OrderGet(c.Request.Context(), id)
	if err != nil {
		return orNotFound(err, errOrderNotFound)
	}
	return httpjson.WriteResource(c.Writer, c.Request, orderFrom(row))
}

func (s *Server) updateOrder(c *gin.Context) error {
	in := s.decode(c, pathID("orderId"), readOnly("id", "petId", "quantity"))
	complete := in.Bool("complete")
	shipDate, cleared := in.NullableTime("shipDate")
	if err := in.Err(); err != nil {
		return err
	}
	before, err := s.queries.OrderGet(c.Request.Context(), in.pathID)
	if err != nil {
		return orNotFound(err, errOrderNotFound)
	}
	row, err := updateIfMatch(s, c, lockOrder(before), func(ctx context.Context, queries *db.Queries) (db.OrderUpdateRow, error) {
		return queries.OrderUpdate(ctx, db.OrderUpdateParams{
			PetID:       before.PetID,
			ID:          in.pathID,
			Complete:    complete,
			SetShipDate: shipDate != nil || cleared,
			ShipDate:    shipDate,
		})
	})
	switch {
	case err != nil:
		return orNotFound(err, errOrderNotFound)
	case !row.Allowed:
		return errInvalidTransition.WithMessage("The order is complete and cannot be reopened. Omit complete or send true.")
	}
	return httpjson.WriteResource(c.Writer, c.Request, order{ID: in.pathID, PetID: before.PetID, Quantity: row.Quantity, ShipDate: inUTC(row.ShipDate), Complete: row.Complete})
}

func (s *Server) cancelOrder(c *gin.Context) error {
	params := readParams(c)
	id := params.PathID("orderId")
	if err := params.Err(); err != nil {
		return err
	}
	before, err := s.queries.OrderGet(c.Request.Context(), id)
	if err != nil {
		return orNotFound(err, errOrderNotFound)
	}
	complete, err := updateIfMatch(s, c, lockOrder(before), func(ctx context.Context, queries *db.Queries) (bool, error) {
		return queries.OrderCancel(ctx, db.OrderCancelParams{PetID: before.PetID, ID: id})
	})
	switch {
	case err != nil:
		return orNotFound(err, errOrderNotFound)
	case complete:
		return errOrderComplete
	}
	c.Status(http.StatusNoContent)
	return nil
}

// lockOrder locks an order for If-Match.
func lockOrder(order db.Order) func(context.Context, *db.Queries) (any, error) {
	return func(ctx context.Context, queries *db.Queries) (any, error) {
		row, err := queries.OrderLock(ctx, db.OrderLockParams{PetID: order.PetID, ID: order.ID})
		return orderFrom(row), err
	}
}

// orderFilter is which orders a list holds; what is nil filters nothing.
type orderFilter struct {
	petID    *int64
	complete *bool
	shipFrom *time.Time // inclusive
	shipTo   *time.Time // exclusive
}

// The ship dates that there can be.
var (
	earliestShipDate = time.Date(1, 1, 1, 0, 0, 0, 0, time.UTC)
	beyondShipDates  = time.Date(10000, 1, 1, 0, 0, 0, 0, time.UTC)
)

// shipping reports whether the filter asks for ship dates at all.
func (f orderFilter) shipping() bool { return f.shipFrom != nil || f.shipTo != nil }

// shipDates is the range of ship dates; where an end is open, that of all dates.
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
		petID:    params.ID("petId"),
		complete: params.Bool("complete"),
		shipFrom: params.Time("shipDateFrom"),
		shipTo:   params.Time("shipDateTo"),
	}
	p := newPage(c, params, defaultLimit, byIDOrShipAt)
	from, to := filter.shipDates()
	p.startWithin(keyOfTime(from), keyOfTime(to))
	if err := params.Err(); err != nil {
		return err
	}
	return writePage(s, c, p, list[db.Order, order]{
		find: func(ctx context.Context) ([]db.Order, error) {
			return s.findOrders(ctx, filter, p)
		},
		count: func(ctx context.Context) (int64, error) {
			return s.countOrders(ctx, filter)
		},
		item:     orderFrom,
		cursorOf: func(row db.Order) httpjson.Position { return orderPosition(row, p) },
	})
}

// orderPosition is the place of an order in the order of a page.
func orderPosition(row db.Order, p *page) httpjson.Position {
	if p.byID() {
		return httpjson.Position{ID: row.ID}
	}
	return httpjson.Position{Key: keyOfTime(*row.ShipDate), ID: row.ID}
}

// keyOfTime writes a time as the key of a position: microseconds of the Unix time.
func keyOfTime(at time.Time) string { return strconv.FormatInt(at.UnixMicro(), 10) }

// findOrders picks the query that walks the index of the filter.
func (s *Server) findOrders(ctx context.Context, f orderFilter, p *page) ([]db.Order, error) {
	id, size := p.after.ID, p.queryLimit()
	switch {
	case f.shipping():
		return s.findOrdersShipping(ctx, f, p)
	case f.petID != nil:
		return s.sorted(p).OrderListOfPet(ctx, db.OrderListOfPetParams{PetID: *f.petID, Completes: boolOrBoth(f.complete), AfterID: id, PageSize: size})
	case f.complete != nil:
		return s.sorted(p).OrderListComplete(ctx, db.OrderListCompleteParams{Complete: *f.complete, AfterID: id, PageSize: size})
	default:
		return s.sorted(p).OrderList(ctx, db.OrderListParams{AfterID: id, PageSize: size})
	}
}

// findOrdersShipping lists the orders that ship within a range of dates, by date.
func (s *Server) findOrdersShipping(ctx context.Context, f orderFilter, p *page) ([]db.Order, error) {
	from, to := f.shipDates()
	after, err := strconv.ParseInt(p.after.Key, 10, 64)
	if err != nil {
		return nil, err // the key comes from keyOfTime
	}
	return db.New(sortedBy{plannedByValues{s.db}, p.sort}).OrderListShipping(ctx, db.OrderListShippingParams{
		PetID: f.petID, Completes: boolOrBoth(f.complete), FromDate: from, UntilDate: to, AfterDate: time.UnixMicro(after), AfterID: p.after.ID, PageSize: p.queryLimit(),
	})
}

// countOrders counts the orders of all pages.
func (s *Server) countOrders(ctx context.Context, f orderFilter) (int64, error) {
	return s.planned.OrderCount(ctx, db.OrderCountParams{PetID: f.petID, Complete: f.complete, ShipDateFrom: f.shipFrom, ShipDateTo: f.shipTo})
}

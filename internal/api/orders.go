package api

import (
	"context"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"

	"petstore/db"
)

// order is the Order of the description.
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
	in := s.read(c).body("id", "complete")
	petID, quantity, shipDate := in.id("petId"), in.integer("quantity", 1, maxOrderQuantity), in.time("shipDate")
	if err := in.err("petId"); err != nil {
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
	r := s.read(c)
	id := r.pathID("orderId")
	if err := r.err(); err != nil {
		return err
	}
	row, err := s.queries.OrderGet(c.Request.Context(), id)
	if err != nil {
		return orNotFound(err, errOrderNotFound)
	}
	return answerResource(c, orderFrom(row))
}

func (s *Server) updateOrder(c *gin.Context) error {
	r := s.read(c)
	id := r.pathID("orderId")
	in := r.body("id", "petId", "quantity")
	complete := in.boolean("complete")
	shipDate, cleared := in.nullableTime("shipDate")
	if err := in.err(); err != nil {
		return err
	}
	before, err := s.queries.OrderGet(c.Request.Context(), id)
	if err != nil {
		return orNotFound(err, errOrderNotFound)
	}
	row, err := change(s, c, lockOrder(before), func(ctx context.Context, queries *db.Queries) (db.OrderUpdateRow, error) {
		return queries.OrderUpdate(ctx, db.OrderUpdateParams{
			PetID:       before.PetID,
			ID:          id,
			Complete:    complete,
			SetShipDate: shipDate != nil || cleared,
			ShipDate:    shipDate,
		})
	})
	switch {
	case err != nil:
		return orNotFound(err, errOrderNotFound)
	case !row.Allowed:
		return errInvalidTransition.saying("An order that is complete stays complete.")
	}
	return answerResource(c, order{ID: id, PetID: before.PetID, Quantity: row.Quantity, ShipDate: inUTC(row.ShipDate), Complete: row.Complete})
}

func (s *Server) cancelOrder(c *gin.Context) error {
	r := s.read(c)
	id := r.pathID("orderId")
	if err := r.err(); err != nil {
		return err
	}
	before, err := s.queries.OrderGet(c.Request.Context(), id)
	if err != nil {
		return orNotFound(err, errOrderNotFound)
	}
	complete, err := change(s, c, lockOrder(before), func(ctx context.Context, queries *db.Queries) (bool, error) {
		return queries.OrderCancel(ctx, db.OrderCancelParams{PetID: before.PetID, ID: id})
	})
	switch {
	case err != nil:
		return orNotFound(err, errOrderNotFound)
	case complete:
		return errOrderComplete
	}
	return answerNothing(c)
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

// completes is what the orders may say of being complete.
func (f orderFilter) completes() []bool {
	if f.complete == nil {
		return []bool{false, true}
	}
	return []bool{*f.complete}
}

func (s *Server) listOrders(c *gin.Context) error {
	r := s.read(c)
	filter := orderFilter{
		petID:    r.queryID("petId"),
		complete: r.queryBool("complete"),
		shipFrom: r.queryTime("shipDateFrom"),
		shipTo:   r.queryTime("shipDateTo"),
	}
	p := r.page(defaultLimit, "id", "-id")
	if err := r.err(); err != nil {
		return err
	}
	return answerPage(s, c, p, list[db.Order, order]{
		find: func(ctx context.Context) ([]db.Order, error) {
			return s.findOrders(ctx, filter, p)
		},
		count: func(ctx context.Context) (int64, error) {
			return s.countOrders(ctx, filter)
		},
		item:  orderFrom,
		place: func(row db.Order) position { return position{id: row.ID} },
	})
}

// findOrders picks the query that walks the index of the filter and the order.
func (s *Server) findOrders(ctx context.Context, f orderFilter, p *page) ([]db.Order, error) {
	id, size, descending := p.after.id, p.size(), p.descending()
	switch {
	case f.shipping():
		return s.findOrdersShipping(ctx, f, p)
	case f.petID != nil && f.complete != nil && descending:
		return s.queries.OrderListOfPetCompleteByIDDesc(ctx, db.OrderListOfPetCompleteByIDDescParams{PetID: *f.petID, Complete: *f.complete, BeforeID: id, PageSize: size})
	case f.petID != nil && f.complete != nil:
		return s.queries.OrderListOfPetCompleteByID(ctx, db.OrderListOfPetCompleteByIDParams{PetID: *f.petID, Complete: *f.complete, AfterID: id, PageSize: size})
	case f.petID != nil && descending:
		return s.queries.OrderListOfPetByIDDesc(ctx, db.OrderListOfPetByIDDescParams{PetID: *f.petID, BeforeID: id, PageSize: size})
	case f.petID != nil:
		return s.queries.OrderListOfPetByID(ctx, db.OrderListOfPetByIDParams{PetID: *f.petID, AfterID: id, PageSize: size})
	case f.complete != nil && descending:
		return s.queries.OrderListCompleteByIDDesc(ctx, db.OrderListCompleteByIDDescParams{Complete: *f.complete, BeforeID: id, PageSize: size})
	case f.complete != nil:
		return s.queries.OrderListCompleteByID(ctx, db.OrderListCompleteByIDParams{Complete: *f.complete, AfterID: id, PageSize: size})
	case descending:
		return s.queries.OrderListByIDDesc(ctx, db.OrderListByIDDescParams{BeforeID: id, PageSize: size})
	default:
		return s.queries.OrderListByID(ctx, db.OrderListByIDParams{AfterID: id, PageSize: size})
	}
}

// findOrdersShipping orders by id the orders that ship within a range of dates.
func (s *Server) findOrdersShipping(ctx context.Context, f orderFilter, p *page) ([]db.Order, error) {
	from, to := f.shipDates()
	id, size, completes, descending := p.after.id, p.size(), f.completes(), p.descending()
	switch {
	case f.petID != nil && descending:
		return s.queries.OrderListOfPetShippingByIDDesc(ctx, db.OrderListOfPetShippingByIDDescParams{PetID: *f.petID, ShipDateFrom: &from, ShipDateTo: &to, Completes: completes, BeforeID: id, PageSize: size})
	case f.petID != nil:
		return s.queries.OrderListOfPetShippingByID(ctx, db.OrderListOfPetShippingByIDParams{PetID: *f.petID, ShipDateFrom: &from, ShipDateTo: &to, Completes: completes, AfterID: id, PageSize: size})
	case descending:
		return s.queries.OrderListShippingByIDDesc(ctx, db.OrderListShippingByIDDescParams{ShipDateFrom: &from, ShipDateTo: &to, Completes: completes, BeforeID: id, PageSize: size})
	default:
		return s.queries.OrderListShippingByID(ctx, db.OrderListShippingByIDParams{ShipDateFrom: &from, ShipDateTo: &to, Completes: completes, AfterID: id, PageSize: size})
	}
}

// countOrders counts the orders of all pages.
func (s *Server) countOrders(ctx context.Context, f orderFilter) (int64, error) {
	from, to := f.shipDates()
	switch {
	case f.petID != nil && f.shipping():
		return s.queries.OrderCountOfPetShipping(ctx, db.OrderCountOfPetShippingParams{PetID: *f.petID, Completes: f.completes(), ShipDateFrom: &from, ShipDateTo: &to})
	case f.petID != nil:
		return s.queries.OrderCountOfPet(ctx, db.OrderCountOfPetParams{PetID: *f.petID, Completes: f.completes()})
	case f.shipping():
		return s.queries.OrderCountShipping(ctx, db.OrderCountShippingParams{ShipDateFrom: &from, ShipDateTo: &to, Completes: f.completes()})
	default:
		return s.queries.OrderCount(ctx, f.completes())
	}
}

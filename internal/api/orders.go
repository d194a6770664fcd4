package api

import (
	"context"
	"errors"
	"strconv"
	"time"

	"github.com/gin-gonic/gin"

	"petstore/db"
	"petstore/internal/account"
	"petstore/internal/event"
	"petstore/internal/gate"
	"petstore/internal/groupcommit"
	"petstore/internal/httpjson"
	"petstore/internal/postgres"
	"petstore/internal/stock"
)

// order is the Order schema of the spec.
type order struct {
	ID       int64 `json:"id"`
	PetID    int64 `json:"petId"`
	Quantity int64 `json:"quantity"`
	// omitzero would also omit the first moment of the year 1.
	ShipDate *time.Time `json:"shipDate,omitempty"`
	Complete bool       `json:"complete"`
}

func orderFrom(row db.Order) order {
	return order{ID: row.ID, PetID: row.PetID, Quantity: row.Quantity, ShipDate: inUTC(row.ShipDate), Complete: row.Complete}
}

// equals reports whether two orders have the same representation.
func (o order) equals(other order) bool {
	same := o.ShipDate == other.ShipDate || o.ShipDate != nil && other.ShipDate != nil && o.ShipDate.Equal(*other.ShipDate)
	o.ShipDate, other.ShipDate = nil, nil
	return same && o == other
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
	wanted := db.Order{PetID: *petID, Quantity: 1, ShipDate: shipDate}
	if quantity != nil {
		wanted.Quantity = *quantity
	}
	return s.post(c, in, groupcommit.Write{Pet: wanted.PetID, Creates: account.Orders, Decide: func(state *groupcommit.State) (groupcommit.Response, error) {
		return decideOrder(state, wanted)
	}})
}

// decideOrder places an order if the stock allows it.
func decideOrder(state *groupcommit.State, wanted db.Order) (groupcommit.Response, error) {
	pet, known := state.Pet(wanted.PetID)
	if !known {
		return refused(errUnknownPet)
	}
	before := pet
	var err error
	switch pet.Stock, err = pet.Stock.Place(wanted.Quantity); {
	case errors.Is(err, stock.ErrNotAvailable):
		return refused(errPetNotAvailable)
	case err != nil:
		return refused(errInsufficientStock)
	}
	state.SetPet(pet)
	wanted.ID = state.CreateOrder(wanted)
	path, placed := itemPath("/store/orders", wanted.ID), orderFrom(wanted)
	if err := emit(state, event.OrderPlaced, path, affectedPet(before, pet).withOrder(order{}, placed)); err != nil {
		return refused(err)
	}
	return created(path, placed)
}

func (s *Server) getOrder(c *gin.Context) error {
	params := readParams(c)
	id := params.PathID("orderId")
	if err := params.Err(); err != nil {
		return err
	}
	row, err := s.reads.OrderGet(c.Request.Context(), db.OrderGetParams{AccountID: gate.Caller(c).AccountID, ID: id})
	if err != nil {
		return orNotFound(err, errOrderNotFound)
	}
	return writeResource(c, orderFrom(row))
}

func (s *Server) updateOrder(c *gin.Context) error {
	in := s.decode(c, pathID("orderId"), readOnly("id", "petId", "quantity"))
	complete := in.Bool("complete")
	shipDate, cleared := in.NullableTime("shipDate")
	if err := in.Err(); err != nil {
		return err
	}
	return s.changeOrder(c, in.pathID, func(state *groupcommit.State, order db.Order, pet groupcommit.Pet) (groupcommit.Response, error) {
		kind, before, petBefore := event.OrderUpdated, orderFrom(order), pet
		if complete != nil {
			switch {
			case order.Complete && !*complete:
				return refused(errInvalidTransition.WithMessage("The order is complete and cannot be reopened. Omit complete or send true."))
			case *complete && !order.Complete:
				kind = event.OrderCompleted
				order.Complete = true
				pet.Stock = pet.Stock.Complete(order.Quantity)
				state.SetPet(pet)
			}
		}
		if shipDate != nil || cleared {
			order.ShipDate = shipDate
		}
		state.SetOrder(order)
		after := orderFrom(order)
		if err := emit(state, kind, itemPath("/store/orders", after.ID), affectedPet(petBefore, pet).withOrder(before, after)); err != nil {
			return refused(err)
		}
		return updated(after)
	})
}

func (s *Server) cancelOrder(c *gin.Context) error {
	params := readParams(c)
	id := params.PathID("orderId")
	if err := params.Err(); err != nil {
		return err
	}
	return s.changeOrder(c, id, func(state *groupcommit.State, canceled db.Order, pet groupcommit.Pet) (groupcommit.Response, error) {
		if canceled.Complete {
			return refused(errOrderComplete)
		}
		before := pet
		pet.Stock = pet.Stock.Cancel(canceled.Quantity)
		state.SetPet(pet)
		state.DeleteOrder(canceled.ID)
		return deleted, emit(state, event.OrderCancelled, itemPath("/store/orders", id), affectedPet(before, pet).withOrder(order{}, orderFrom(canceled)))
	})
}

// changeOrder decides on an order and its pet, if the order exists and the preconditions
// hold. It first reads which pet that is, because a write locks the pet. An order never
// changes its pet.
func (s *Server) changeOrder(c *gin.Context, id int64, decide func(*groupcommit.State, db.Order, groupcommit.Pet) (groupcommit.Response, error)) error {
	request := c.Request
	before, err := s.queries.OrderGet(request.Context(), db.OrderGetParams{AccountID: gate.Caller(c).AccountID, ID: id})
	if err != nil {
		return orNotFound(err, errOrderNotFound)
	}
	return s.commit(c, groupcommit.Write{Pet: before.PetID, Order: id, Decide: func(state *groupcommit.State) (groupcommit.Response, error) {
		order, known := state.Order(id)
		if !known {
			return refused(errOrderNotFound)
		}
		if err := checkTag(request, orderFrom(order)); err != nil {
			return refused(err)
		}
		pet, _ := state.Pet(order.PetID)
		return decide(state, order, pet)
	}})
}

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
	return db.New(sortedBy{plannedByValues{postgres.Reads{DB: s.db}}, p.sort}).OrderListShipping(ctx, db.OrderListShippingParams{
		AccountID: f.account, PetID: f.petID, Completes: boolOrBoth(f.complete), FromDate: from, UntilDate: to, AfterDate: time.UnixMicro(after), AfterID: p.after.ID, PageSize: p.queryLimit(),
	})
}

// countOrders counts the orders of all pages.
func (s *Server) countOrders(ctx context.Context, f orderFilter) (int64, error) {
	return s.planned.OrderCount(ctx, db.OrderCountParams{AccountID: f.account, PetID: f.petID, Complete: f.complete, ShipDateFrom: f.shipFrom, ShipDateTo: f.shipTo})
}

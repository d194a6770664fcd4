package api

import (
	"context"
	"net/http"
	"strconv"
	"time"

	"github.com/gin-gonic/gin"

	"petstore/db"
	"petstore/internal/account"
	"petstore/internal/coalesce"
	"petstore/internal/httpjson"
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

func inUTC(at *time.Time) *time.Time {
	if at == nil {
		return nil
	}
	utc := at.UTC()
	return &utc
}

func (s *Server) placeOrder(c *gin.Context) error {
	in := s.decode(c, required("petId"), readOnly("id", "complete"))
	params, err := orderParams(in)
	if err != nil {
		return err
	}
	params.AccountID = caller(c).AccountID
	placed, err := runOnce(s, c, in, effect[db.OrderPlaceRow]{
		creates: account.Orders,
		coalesced: func(ctx context.Context) (db.OrderPlaceRow, error) {
			return s.orders.Do(ctx, petKey{params.AccountID, params.PetID}, params)
		},
		statement: func(ctx context.Context, queries *db.Queries) (db.OrderPlaceRow, error) {
			return queries.OrderPlace(ctx, params)
		},
		respond: func(row db.OrderPlaceRow) (created, error) {
			return orderPlaced(params, row)
		},
	})
	if err != nil {
		return err
	}
	writeCreated(c, placed)
	return nil
}

// orderParams reads the fields of a new order.
func orderParams(in *input) (db.OrderPlaceParams, error) {
	petID, quantity, shipDate := in.ID("petId"), in.Integer("quantity", 1, maxOrderQuantity), in.Time("shipDate")
	if err := in.Err(); err != nil {
		return db.OrderPlaceParams{}, err
	}
	params := db.OrderPlaceParams{PetID: *petID, Quantity: 1, ShipDate: shipDate}
	if quantity != nil {
		params.Quantity = *quantity
	}
	return params, nil
}

// orderPlaced returns the response to a new order, or why the statement did not place it.
func orderPlaced(params db.OrderPlaceParams, row db.OrderPlaceRow) (created, error) {
	switch {
	case !row.PetKnown:
		return created{}, errUnknownPet
	case row.PetStatus != statusAvailable:
		return created{}, errPetNotAvailable
	case row.ID == 0:
		return created{}, errInsufficientStock
	}
	placed := order{ID: row.ID, PetID: params.PetID, Quantity: params.Quantity, ShipDate: inUTC(row.ShipDate)}
	return created{status: http.StatusCreated, location: itemPath("/store/orders", row.ID), value: placed}, nil
}

// maxOrdersPerStatement is the maximum number of orders that one statement places.
const maxOrdersPerStatement = 100

// petKey identifies a pet.
type petKey struct{ account, id int64 }

// newOrderPlacer returns a coalescer of orders of the same pet. It runs one statement at
// a time. A second one would only wait for the lock on the stock, which the first holds
// until its commit is on disk. A statement decides its orders in the order of arrival.
// The caller retries.
//
// A client that disconnects cancels no statement, because the context of a write does
// not end with its client.
func newOrderPlacer(queries *db.Queries) *coalesce.Coalescer[petKey, db.OrderPlaceParams, db.OrderPlaceRow] {
	return coalesce.New(coalesce.Limits{Parallel: 1, Inputs: maxOrdersPerStatement}, func(ctx context.Context, pet petKey, orders []db.OrderPlaceParams) ([]db.OrderPlaceRow, error) {
		if len(orders) == 1 {
			row, err := queries.OrderPlace(ctx, orders[0])
			return []db.OrderPlaceRow{row}, err
		}
		all := db.OrderPlaceManyParams{AccountID: pet.account, PetID: pet.id, NoShipDate: beyondShipDates}
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
		rows := make([]db.OrderPlaceRow, len(orders)) // stay zero if the pet is unknown
		for i, row := range placed {
			rows[i] = db.OrderPlaceRow{ID: row.ID, ShipDate: row.ShipDate, PetKnown: true, PetStatus: row.PetStatus}
		}
		return rows, nil
	})
}

func (s *Server) getOrder(c *gin.Context) error {
	params := readParams(c)
	id := params.PathID("orderId")
	if err := params.Err(); err != nil {
		return err
	}
	row, err := s.queries.OrderGet(c.Request.Context(), db.OrderGetParams{AccountID: caller(c).AccountID, ID: id})
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
	before, err := s.queries.OrderGet(c.Request.Context(), db.OrderGetParams{AccountID: caller(c).AccountID, ID: in.pathID})
	if err != nil {
		return orNotFound(err, errOrderNotFound)
	}
	row, err := updateIfMatch(s, c, lockOrder(before), func(ctx context.Context, queries *db.Queries) (db.OrderUpdateRow, error) {
		return queries.OrderUpdate(ctx, db.OrderUpdateParams{
			AccountID:   before.AccountID,
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
	before, err := s.queries.OrderGet(c.Request.Context(), db.OrderGetParams{AccountID: caller(c).AccountID, ID: id})
	if err != nil {
		return orNotFound(err, errOrderNotFound)
	}
	complete, err := updateIfMatch(s, c, lockOrder(before), func(ctx context.Context, queries *db.Queries) (bool, error) {
		return queries.OrderCancel(ctx, db.OrderCancelParams{AccountID: before.AccountID, PetID: before.PetID, ID: id})
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
		row, err := queries.OrderLock(ctx, db.OrderLockParams{AccountID: order.AccountID, PetID: order.PetID, ID: order.ID})
		return orderFrom(row), err
	}
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

// shipDates returns the range of ship dates. An open end is that of all dates.
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
		account:  caller(c).AccountID,
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
		return s.sorted(p).OrderListOfPet(ctx, db.OrderListOfPetParams{AccountID: f.account, PetID: *f.petID, Completes: boolOrBoth(f.complete), AfterID: id, PageSize: size})
	case f.complete != nil:
		return s.sorted(p).OrderListComplete(ctx, db.OrderListCompleteParams{AccountID: f.account, Complete: *f.complete, AfterID: id, PageSize: size})
	default:
		return s.sorted(p).OrderList(ctx, db.OrderListParams{AccountID: f.account, AfterID: id, PageSize: size})
	}
}

// findOrdersShipping lists orders within a range of ship dates, sorted by ship date.
func (s *Server) findOrdersShipping(ctx context.Context, f orderFilter, p *page) ([]db.Order, error) {
	from, to := f.shipDates()
	after, err := strconv.ParseInt(p.after.Key, 10, 64)
	if err != nil {
		return nil, err // a bug: keyOfTime made the key
	}
	return db.New(sortedBy{plannedByValues{s.db}, p.sort}).OrderListShipping(ctx, db.OrderListShippingParams{
		AccountID: f.account, PetID: f.petID, Completes: boolOrBoth(f.complete), FromDate: from, UntilDate: to, AfterDate: time.UnixMicro(after), AfterID: p.after.ID, PageSize: p.queryLimit(),
	})
}

// countOrders counts the orders of all pages.
func (s *Server) countOrders(ctx context.Context, f orderFilter) (int64, error) {
	return s.planned.OrderCount(ctx, db.OrderCountParams{AccountID: f.account, PetID: f.petID, Complete: f.complete, ShipDateFrom: f.shipFrom, ShipDateTo: f.shipTo})
}

package api

import (
	"errors"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/jackc/pgx/v5"

	"petstore/db"
	"petstore/internal/account"
	"petstore/internal/event"
	"petstore/internal/gate"
	"petstore/internal/groupcommit"
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

func (s *Server) placeOrder(c *gin.Context) error {
	in := s.decode(c, keyed, required("petId"), readOnly("id", "complete"))
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
	pet, known := state.Pets.Get(wanted.PetID)
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
	state.Pets.Set(pet)
	wanted.ID = state.Orders.Create(wanted)
	path, placed := itemPath("/store/orders", wanted.ID), orderFrom(wanted)
	if err := emit(state, event.OrderPlaced, path, affectedPet(before, pet).withOrder(order{}, placed)); err != nil {
		return refused(err)
	}
	return created(path, placed)
}

func (s *Server) getOrder(c *gin.Context, id int64) error {
	row, err := s.reads.OrderGet(c.Request.Context(), db.OrderGetParams{AccountID: gate.Caller(c).AccountID, ID: id})
	if err != nil {
		return orNotFound(err, errOrderNotFound)
	}
	return writeResource(c, orderFrom(row))
}

func (s *Server) updateOrder(c *gin.Context, id int64) error {
	in := s.decode(c, readOnly("id", "petId", "quantity"))
	complete := in.Bool("complete")
	shipDate, cleared := in.NullableTime("shipDate")
	if err := in.Err(); err != nil {
		return err
	}
	return s.changeOrder(c, id, func(state *groupcommit.State, order db.Order, pet groupcommit.Pet) (groupcommit.Response, error) {
		kind, before, petBefore := event.OrderUpdated, orderFrom(order), pet
		if complete != nil {
			switch {
			case order.Complete && !*complete:
				return refused(errInvalidTransition.WithMessage("The order is complete and cannot be reopened. Omit complete or send true."))
			case *complete && !order.Complete:
				kind = event.OrderCompleted
				order.Complete = true
				pet.Stock = pet.Stock.Complete(order.Quantity)
				state.Pets.Set(pet)
			}
		}
		if shipDate != nil || cleared {
			order.ShipDate = shipDate
		}
		state.Orders.Set(order)
		after := orderFrom(order)
		if err := emit(state, kind, itemPath("/store/orders", after.ID), affectedPet(petBefore, pet).withOrder(before, after)); err != nil {
			return refused(err)
		}
		return updated(after)
	})
}

func (s *Server) cancelOrder(c *gin.Context, id int64) error {
	return s.changeOrder(c, id, func(state *groupcommit.State, canceled db.Order, pet groupcommit.Pet) (groupcommit.Response, error) {
		if canceled.Complete {
			return refused(errOrderComplete)
		}
		before := pet
		pet.Stock = pet.Stock.Cancel(canceled.Quantity)
		state.Pets.Set(pet)
		state.Orders.Delete(canceled.ID)
		return deleted, emit(state, event.OrderCancelled, itemPath("/store/orders", id), affectedPet(before, pet).withOrder(order{}, orderFrom(canceled)))
	})
}

// changeOrder decides on an order and its pet, if the order exists and the preconditions
// hold. It first reads which pet that is, because a write locks the pet. An order never
// changes its pet. A write without an order waits for the standby, which may not know yet that an
// earlier attempt has cancelled it.
func (s *Server) changeOrder(c *gin.Context, id int64, decide func(*groupcommit.State, db.Order, groupcommit.Pet) (groupcommit.Response, error)) error {
	request := c.Request
	before, err := s.queries.OrderGet(request.Context(), db.OrderGetParams{AccountID: gate.Caller(c).AccountID, ID: id})
	if err != nil && !errors.Is(err, pgx.ErrNoRows) {
		return err
	}
	return s.commit(c, groupcommit.Write{Pet: before.PetID, Order: id, Alone: err != nil, Decide: func(state *groupcommit.State) (groupcommit.Response, error) {
		order, known := state.Orders.Get(id)
		if !known {
			return refused(errOrderNotFound)
		}
		if err := checkTag(request, orderFrom(order)); err != nil {
			return refused(err)
		}
		pet, _ := state.Pets.Get(order.PetID)
		return decide(state, order, pet)
	}})
}

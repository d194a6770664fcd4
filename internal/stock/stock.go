// Package stock has the rules of stock and states (guide Stock and states) as
// functions of the current state of a pet. They are pure: the caller locks the rows
// that the state comes from, and writes the rows of the new state.
package stock

import "errors"

// Status is the status of a pet.
type Status string

// The values of Status.
const (
	Available Status = "available"
	Pending   Status = "pending"
	Sold      Status = "sold"
)

// State is the stock of a pet and its status.
type State struct {
	Quantity int64 // units that can be ordered, at least 0
	Held     int64 // units of open orders, at least 0
	Status   Status
}

// The reasons for which a change is not allowed.
var (
	ErrNotAvailable      = errors.New("stock: the pet is not available")
	ErrInsufficient      = errors.New("stock: fewer units in stock than ordered")
	ErrInvalidTransition = errors.New("stock: a sold pet cannot become pending")
)

// Place returns the state after an order of at least one unit. The units move from
// stock to held. A pet without stock becomes pending. The error is [ErrNotAvailable] or
// [ErrInsufficient].
func (s State) Place(units int64) (State, error) {
	if s.Status != Available {
		return s, ErrNotAvailable
	}
	if s.Quantity < units {
		return s, ErrInsufficient
	}
	s.Quantity -= units
	s.Held += units
	if s.Quantity == 0 {
		s.Status = Pending
	}
	return s, nil
}

// Complete returns the state after an open order of this many units is complete. The
// held units leave. A pet without stock and held units becomes sold.
func (s State) Complete(units int64) State {
	s.Held -= units
	if s.Quantity == 0 && s.Held == 0 {
		s.Status = Sold
	}
	return s
}

// Cancel returns the state after an open order of this many units is cancelled. The
// units return to stock. If stock was 0 before, a pending pet becomes available.
func (s State) Cancel(units int64) State {
	if s.Quantity == 0 && s.Status == Pending {
		s.Status = Available
	}
	s.Quantity += units
	s.Held -= units
	return s
}

// Restock returns the state after the stock is replaced by a quantity of at least 0.
// More than 0 turns a sold or pending pet available. 0 turns an available pet pending
// if units are held.
func (s State) Restock(quantity int64) State {
	if quantity > 0 {
		s.Status = Available
	} else if s.Status == Available && s.Held > 0 {
		s.Status = Pending
	}
	s.Quantity = quantity
	return s
}

// SetStatus returns the state after a client sets the status. The stock stays. The
// error is [ErrInvalidTransition].
func (s State) SetStatus(status Status) (State, error) {
	if s.Status == Sold && status == Pending {
		return s, ErrInvalidTransition
	}
	s.Status = status
	return s, nil
}

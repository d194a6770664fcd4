package stock_test

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"testing"

	"petstore/internal/stock"
)

// maxUnits is the largest quantity of an order and of a restock, and maxOpen the largest
// number of open orders.
const maxUnits, maxOpen = 3, 3

// rules are the functions under test.
type rules struct {
	place                     func(stock.State, int64) (stock.State, error)
	complete, cancel, restock func(stock.State, int64) stock.State
	setStatus                 func(stock.State, stock.Status) (stock.State, error)
}

var production = rules{stock.State.Place, stock.State.Complete, stock.State.Cancel, stock.State.Restock, stock.State.SetStatus}

// pet is the state of a pet, and how many of its open orders have 1, 2 and 3 units.
type pet struct {
	stock.State

	open [maxUnits + 1]int
}

// orders returns the number of open orders, and that of their units.
func (p pet) orders() (count int, units int64) {
	for size, orders := range p.open {
		count, units = count+orders, units+int64(size*orders)
	}
	return count, units
}

// step is a change of a pet.
type step struct {
	what     string
	quantity int64        // all but setStatus
	status   stock.Status // setStatus
}

// steps returns what can happen to a pet.
func (p pet) steps() (steps []step) {
	orders, _ := p.orders()
	for quantity := range int64(maxUnits + 1) {
		steps = append(steps, step{what: "restock", quantity: quantity})
		if quantity > 0 && orders < maxOpen {
			steps = append(steps, step{what: "place", quantity: quantity})
		}
		if p.open[quantity] > 0 {
			steps = append(steps, step{what: "complete", quantity: quantity}, step{what: "cancel", quantity: quantity})
		}
	}
	for _, status := range []stock.Status{stock.Available, stock.Pending, stock.Sold} {
		steps = append(steps, step{what: "setStatus", status: status})
	}
	return steps
}

// take takes a step.
func (r rules) take(p pet, s step) (after pet, err error) {
	after = p
	switch s.what {
	case "restock":
		after.State = r.restock(p.State, s.quantity)
	case "place":
		if after.State, err = r.place(p.State, s.quantity); err == nil {
			after.open[s.quantity]++
		}
	case "complete":
		after.State = r.complete(p.State, s.quantity)
		after.open[s.quantity]--
	case "cancel":
		after.State = r.cancel(p.State, s.quantity)
		after.open[s.quantity]--
	case "setStatus":
		after.State, err = r.setStatus(p.State, s.status)
	}
	return after, err
}

// check compares a step with the table of the guide "Stock and states". It returns what is
// wrong.
func check(before pet, s step, after pet, err error) string {
	if _, held := after.orders(); after.Quantity < 0 || after.Held != held {
		return "the units held are not the units of the open orders, or the stock is below 0"
	}
	var refused error
	status, units := before.Status, before.Quantity+before.Held // in stock and held
	switch s.what {
	case "place":
		switch {
		case before.Status != stock.Available:
			refused = stock.ErrNotAvailable
		case before.Quantity < s.quantity:
			refused = stock.ErrInsufficient
		case after.Quantity == 0:
			status = stock.Pending
		}
	case "complete":
		units -= s.quantity
		if units == 0 {
			status = stock.Sold
		}
	case "cancel":
		if before.Quantity == 0 && before.Status == stock.Pending {
			status = stock.Available
		}
	case "restock":
		units = s.quantity + before.Held
		if s.quantity > 0 {
			status = stock.Available
		} else if before.Status == stock.Available && before.Held > 0 {
			status = stock.Pending
		}
	case "setStatus":
		if before.Status == stock.Sold && s.status == stock.Pending {
			refused = stock.ErrInvalidTransition
		} else {
			status = s.status
		}
	}
	switch {
	case !errors.Is(err, refused):
		return fmt.Sprintf("the error is %v, want %v", err, refused)
	case refused != nil && after != before:
		return "a change that is not allowed has an effect"
	case after.Quantity+after.Held != units:
		return fmt.Sprintf("%d units in stock and held, want %d", after.Quantity+after.Held, units)
	case after.Status != status:
		return fmt.Sprintf("%s, want %s", after.Status, status)
	}
	return ""
}

// search takes all sequences of steps of a new pet, of any length. It returns the number of
// states and of steps between them, and the first mistake.
func (r rules) search() (states, steps int, mistake string) {
	first := pet{State: stock.State{Status: stock.Available}}
	seen, queue := map[pet]bool{first: true}, []pet{first}
	for ; len(queue) > 0; queue = queue[1:] {
		for _, s := range queue[0].steps() {
			after, err := r.take(queue[0], s)
			if wrong := check(queue[0], s, after, err); wrong != "" {
				return len(seen), steps, fmt.Sprintf("%+v, %+v: %+v: %s", queue[0], s, after, wrong)
			}
			if steps++; !seen[after] {
				seen[after] = true
				queue = append(queue, after)
			}
		}
	}
	return len(seen), steps, ""
}

// mistakes are wrong rules, which the search must find.
var mistakes = map[string]func(*rules){
	"an order takes a unit too few": func(r *rules) {
		r.place = func(s stock.State, units int64) (stock.State, error) {
			after, err := s.Place(units)
			if err == nil {
				after.Quantity++
			}
			return after, err
		}
	},
	"an order holds nothing": func(r *rules) {
		r.place = func(s stock.State, units int64) (stock.State, error) {
			after, err := s.Place(units)
			after.Held = s.Held
			return after, err
		}
	},
	"stock is sold twice": func(r *rules) {
		r.place = func(s stock.State, units int64) (stock.State, error) {
			s.Quantity += units
			after, err := s.Place(units)
			after.Quantity -= units
			return after, err
		}
	},
	"the last unit cannot be ordered": func(r *rules) {
		r.place = func(s stock.State, units int64) (stock.State, error) {
			if s.Status == stock.Available && s.Quantity == units {
				return s, stock.ErrInsufficient
			}
			return s.Place(units)
		}
	},
	"a pending pet can be ordered": func(r *rules) {
		r.place = func(s stock.State, units int64) (stock.State, error) {
			if s.Status == stock.Pending {
				s.Status = stock.Available
			}
			return s.Place(units)
		}
	},
	"a pet without stock stays available": func(r *rules) {
		r.place = func(s stock.State, units int64) (stock.State, error) {
			after, err := s.Place(units)
			after.Status = s.Status
			return after, err
		}
	},
	"a refused order has an effect": func(r *rules) {
		r.place = func(s stock.State, units int64) (stock.State, error) {
			after, err := s.Place(units)
			if err != nil {
				after.Status = stock.Pending
			}
			return after, err
		}
	},
	"units of a complete order return to stock": func(r *rules) {
		r.complete = func(s stock.State, units int64) stock.State {
			s = s.Complete(units)
			s.Quantity += units
			return s
		}
	},
	"a pet with held units becomes sold": func(r *rules) {
		r.complete = func(s stock.State, units int64) stock.State {
			after := s.Complete(units)
			if after.Quantity == 0 {
				after.Status = stock.Sold
			}
			return after
		}
	},
	"units of a cancelled order stay held": func(r *rules) {
		r.cancel = func(s stock.State, units int64) stock.State {
			after := s.Cancel(units)
			after.Held = s.Held
			return after
		}
	},
	"a cancelled order makes a sold pet available": func(r *rules) {
		r.cancel = func(s stock.State, units int64) stock.State {
			s = s.Cancel(units)
			s.Status = stock.Available
			return s
		}
	},
	"a restock forgets the held units": func(r *rules) {
		r.restock = func(s stock.State, quantity int64) stock.State {
			s = s.Restock(quantity)
			s.Held = 0
			return s
		}
	},
	"a restock adds to the stock": func(r *rules) {
		r.restock = func(s stock.State, quantity int64) stock.State {
			after := s.Restock(quantity)
			after.Quantity += s.Quantity
			return after
		}
	},
	"a restock with 0 makes every pet pending": func(r *rules) {
		r.restock = func(s stock.State, quantity int64) stock.State {
			s = s.Restock(quantity)
			if quantity == 0 {
				s.Status = stock.Pending
			}
			return s
		}
	},
	"a sold pet can become pending": func(r *rules) {
		r.setStatus = func(s stock.State, status stock.Status) (stock.State, error) {
			s.Status = status
			return s, nil
		}
	},
}

// TestAllSequences takes all sequences of orders, restocks and changes of the status, and
// compares each step with the guide. It finds every planted mistake.
func TestAllSequences(t *testing.T) {
	t.Parallel()
	states, steps, mistake := production.search()
	if mistake != "" {
		t.Error(mistake)
	}
	t.Logf("%d states, %d steps", states, steps)
	for _, name := range slices.Sorted(maps.Keys(mistakes)) {
		wrong := production
		mistakes[name](&wrong)
		_, _, mistake := wrong.search()
		if mistake == "" {
			t.Errorf("the search does not find: %s", name)
		}
		t.Logf("%s: %s", name, mistake)
	}
}

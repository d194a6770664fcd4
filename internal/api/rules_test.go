package api_test

import (
	"crypto/rand"
	"errors"
	"fmt"
	"slices"
	"testing"

	"github.com/jackc/pgx/v5"

	"petstore/internal/tools/need"
)

// shelf is a pet with its stock and open orders. A shelf without a status stands
// for a pet that does not exist.
type shelf struct {
	Status string
	Stock  int64
	Held   []int64 // units of each open order, ascending
}

// on returns a shelf with this stock, and orders that hold these units.
func on(status string, stock int64, held ...int64) shelf {
	return shelf{status, stock, held}
}

// gone is the shelf of a deleted pet.
var gone shelf

func (s shelf) String() string {
	if s.Status == "" {
		return "gone"
	}
	return fmt.Sprintf("%s %d %v", s.Status, s.Stock, s.Held)
}

// scene is a pet on a server, with its open orders.
type scene struct {
	*petstore

	pet    int64
	orders []int64
}

// stage creates a pet through the API, with one order for each number of held units.
func (p *petstore) stage(want shelf) scene {
	p.t.Helper()
	stock, now := want.Stock, "available"
	for _, units := range want.Held {
		stock += units
	}
	s := scene{petstore: p, pet: p.newPet(rand.Text(), stock)}
	for _, units := range want.Held {
		s.orders = append(s.orders, p.newOrder(s.pet, units))
	}
	if want.Stock == 0 && len(want.Held) > 0 {
		now = "pending"
	}
	if want.Status != now {
		p.patch(s.petPath(), object{"status": want.Status}).want(200)
	}
	return s
}

func (s scene) petPath() string        { return fmt.Sprintf("/pets/%d", s.pet) }
func (s scene) inventoryPath() string  { return fmt.Sprintf("/store/inventory/%d", s.pet) }
func (s scene) orderPath(i int) string { return fmt.Sprintf("/store/orders/%d", s.orders[i]) }

// order reads an order that was open when the scene was staged.
func (s scene) order(i int) order {
	s.t.Helper()
	return decode[order](s.get(s.orderPath(i)).want(200))
}

func (s scene) run(happen event) *response {
	s.t.Helper()
	resp := need.Value(happen(s))(s.t)
	return resp
}

// wantShelf fails the test unless clients see this shelf and the database stores it.
func (s scene) wantShelf(want shelf) {
	s.t.Helper()
	need.Same(s.t, want, s.seen(), "pet %d, as seen by clients", s.pet)
	need.Same(s.t, want, s.stored(), "pet %d, as stored", s.pet)
}

func (s scene) seen() shelf {
	s.t.Helper()
	item := s.inventory(s.pet)
	have := shelf{Status: item.Status, Stock: item.Quantity}
	pets := decode[[]pet](s.get(fmt.Sprintf("/pets?id=%d", s.pet)).want(200))
	if len(pets) != 1 || pets[0].Status != item.Status {
		s.t.Errorf("the inventory says that pet %d is %s, but the pet is %+v", s.pet, item.Status, pets)
	}
	for _, open := range walk[order](s.petstore, fmt.Sprintf("/store/orders?petId=%d&complete=false", s.pet)) {
		have.Held = append(have.Held, open.Quantity)
	}
	slices.Sort(have.Held)
	return have
}

// stored returns the shelf as the database has it, in one snapshot. The held units
// must equal the units of the open orders.
func (s scene) stored() shelf {
	s.t.Helper()
	var have shelf
	var held, sum int64
	err := s.db.QueryRow(s.t.Context(), `
		SELECT pets.status, inventory.quantity, inventory.held,
		       ARRAY(SELECT quantity FROM orders WHERE account_id = $1 AND pet_id = pets.id AND NOT complete ORDER BY quantity)
		FROM pets
		LEFT JOIN inventory ON inventory.account_id = $1 AND inventory.pet_id = pets.id
		WHERE pets.account_id = $1 AND pets.id = $2`, s.accountID(), s.pet).Scan(&have.Status, &have.Stock, &held, &have.Held)
	if errors.Is(err, pgx.ErrNoRows) {
		return gone
	}
	need.OK(s.t, err)
	for _, units := range have.Held {
		sum += units
	}
	if held != sum {
		s.t.Errorf("pet %d: %d held units, but open orders %v", s.pet, held, have.Held)
	}
	if len(have.Held) == 0 {
		have.Held = nil
	}
	return have
}

// event is a request of a client in a scene.
type event func(scene) (*response, error)

func placing(units int64) event {
	return func(s scene) (*response, error) {
		return s.try("POST", "/store/orders", object{"petId": s.pet, "quantity": units})
	}
}

func completing(i int) event { return patchingOrder(i, `{"complete": true}`) }
func reopening(i int) event  { return patchingOrder(i, `{"complete": false}`) }

func patchingOrder(i int, body string) event {
	return func(s scene) (*response, error) { return s.try("PATCH", s.orderPath(i), body) }
}

func cancelling(i int) event {
	return func(s scene) (*response, error) { return s.try("DELETE", s.orderPath(i), nil) }
}

func stocking(units int64) event {
	return func(s scene) (*response, error) {
		return s.try("PUT", s.inventoryPath(), object{"quantity": units})
	}
}

func moving(status string) event { return patchingPet(object{"status": status}) }

func patchingPet(body any) event {
	return func(s scene) (*response, error) { return s.try("PATCH", s.petPath(), body) }
}

func deleting(s scene) (*response, error) { return s.try("DELETE", s.petPath(), nil) }

// rule is an event in one situation, with the expected response and the shelf afterwards.
type rule struct {
	name   string
	before shelf
	event  event
	status int
	code   string // error code, if the event fails
	after  shelf
}

// checkRules checks rules, each on a pet of its own.
func checkRules(t *testing.T, rules []rule) {
	t.Helper()
	p := start(t)
	for _, rule := range rules {
		t.Run(rule.name, func(t *testing.T) {
			t.Parallel()
			s := p.in(t).stage(rule.before)
			resp := s.run(rule.event).want(rule.status)
			if rule.code != "" {
				resp.wantError(rule.status, rule.code)
			}
			s.wantShelf(rule.after)
		})
	}
}

package api_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"petstore/db"
	"petstore/internal/pgtest"
	"petstore/internal/tools/need"
)

// TestStockIsNeverOversold: concurrent orders never sell more than the stock.
func TestStockIsNeverOversold(t *testing.T) {
	t.Parallel()
	const buyers, stock = 64, 100
	for _, test := range []struct {
		units, left int64
		status      string
		refusal     string
	}{
		{5, 0, "pending", "pet_not_available"},
		{3, 1, "available", "insufficient_stock"},
	} {
		t.Run(fmt.Sprint(test.units, " units each"), func(t *testing.T) {
			t.Parallel()
			s := start(t).stage(on("available", stock))
			ends := outcomes(allAtOnce(t, buyers, func(int) (*response, error) { return placing(test.units)(s) }))
			orders := int(stock / test.units)
			need.Same(t, map[string]int{"201": orders, "409 " + test.refusal: buyers - orders}, ends, "orders")
			s.wantShelf(on(test.status, test.left, slices.Repeat([]int64{test.units}, orders)...))
		})
	}
}

// TestRacesOfTwo: two concurrent events end as if one had followed the other. In every other round both
// are delayed until both have started, so that each has seen the state before the other.
func TestRacesOfTwo(t *testing.T) {
	t.Parallel()
	const rounds = 6
	// Each event goes to its own server, because orders of one pet on one server share a statement.
	p := startAlone(t).patient()
	other := p.patient()
	type race struct {
		name     string
		before   shelf
		one, two event
		ends     []string // the two responses, and the state of the pet afterwards
	}
	two := func(name string, before shelf, one, two event, ends ...string) race {
		return race{name, before, one, two, ends}
	}
	for _, race := range []race{
		two("two orders of the last unit", on("available", 1), placing(1), placing(1),
			"201, 409 pet_not_available: pending 0 [1]", "409 pet_not_available, 201: pending 0 [1]"),
		two("two orders of all units", on("available", 5), placing(2), placing(3), "201, 201: pending 0 [2 3]"),
		two("two completions", on("pending", 0, 1, 2), completing(0), completing(1), "200, 200: sold 0 []"),
		two("two completions of one order", on("pending", 0, 2), completing(0), completing(0), "200, 200: sold 0 []"),
		two("two cancellations", on("pending", 0, 1, 2), cancelling(0), cancelling(1), "204, 204: available 3 []"),
		two("two cancellations of one order", on("pending", 0, 2), cancelling(0), cancelling(0),
			"204, 404 order_not_found: available 2 []", "404 order_not_found, 204: available 2 []"),
		two("completion and cancellation", on("pending", 0, 1, 2), completing(0), cancelling(1),
			"200, 204: available 2 []"),
		two("completion and cancellation of one order", on("pending", 0, 2), completing(0), cancelling(0),
			"200, 409 order_complete: sold 0 []", "404 order_not_found, 204: available 2 []"),
		two("order and completion", on("available", 1, 2), placing(1), completing(0), "201, 200: pending 0 [1]"),
		two("order and cancellation", on("pending", 0, 2), placing(2), cancelling(0),
			"201, 204: pending 0 [2]", "409 pet_not_available, 204: available 2 []"),
		two("order of the last unit and cancellation", on("available", 1, 2), placing(1), cancelling(0),
			"201, 204: available 2 [1]"),
		two("order and pending by a client", on("available", 1), placing(1), moving("pending"),
			"201, 200: pending 0 [1]", "409 pet_not_available, 200: pending 1 []"),
		two("order and available by a client", on("pending", 1), placing(1), moving("available"),
			"201, 200: pending 0 [1]", "409 pet_not_available, 200: pending 1 []", "409 pet_not_available, 200: available 1 []"),
		two("order and another name", on("available", 1), placing(1), patchingPet(object{"name": "Max"}),
			"201, 200: pending 0 [1]"),
		two("completion and pending by a client", on("available", 0, 2), completing(0), moving("pending"),
			"200, 200: sold 0 []", "200, 409 invalid_transition: sold 0 []"),
		two("cancellation and sold by a client", on("pending", 0, 2), cancelling(0), moving("sold"),
			"204, 200: sold 2 []"),
		two("order and stock", on("available", 1), placing(1), stocking(5),
			"201, 200: available 5 [1]", "201, 200: available 4 [1]"),
		two("order and no stock", on("available", 1), placing(1), stocking(0),
			"201, 200: pending 0 [1]", "409 insufficient_stock, 200: available 0 []"),
		two("completion and stock", on("pending", 0, 2), completing(0), stocking(5), "200, 200: available 5 []"),
		two("completion and no stock", on("available", 1, 2), completing(0), stocking(0),
			"200, 200: available 0 []", "200, 200: sold 0 []"),
		two("cancellation and no stock", on("pending", 0, 2), cancelling(0), stocking(0),
			"204, 200: available 0 []", "204, 200: available 2 []"),
		two("order and deletion", on("available", 1), placing(1), deleting,
			"201, 409 pet_in_use: pending 0 [1]", "422 unknown_pet, 204: gone"),
		two("cancellation and deletion", on("pending", 0, 2), cancelling(0), deleting,
			"204, 204: gone", "204, 409 pet_in_use: available 2 []"),
		two("completion and deletion", on("pending", 0, 2), completing(0), deleting, "200, 409 pet_in_use: sold 0 []"),
		two("stock and deletion", on("available", 1), stocking(5), deleting,
			"200, 204: gone", "404 inventory_not_found, 204: gone"),
		two("status and deletion", on("available", 1), moving("sold"), deleting,
			"200, 204: gone", "404 pet_not_found, 204: gone"),
		two("two deletions", on("available", 1), deleting, deleting,
			"204, 404 pet_not_found: gone", "404 pet_not_found, 204: gone"),
	} {
		t.Run(race.name, func(t *testing.T) {
			p := p.in(t)
			seen := map[string]int{}
			for round := range rounds {
				s := p.stage(race.before)
				elsewhere := s
				elsewhere.petstore = other.in(t)
				run := func(i int) (*response, error) {
					return []event{race.one, race.two}[i]([]scene{s, elsewhere}[i])
				}
				var responses []*response
				if round%2 == 0 {
					responses = allAtOnce(t, 2, run)
				} else {
					responses = s.heldUp(2, 2, run)
				}
				seen[fmt.Sprintf("%s, %s: %v", responses[0].brief(), responses[1].brief(), s.stored())]++
			}
			for end, times := range seen {
				if !slices.Contains(race.ends, end) {
					t.Errorf("%d of %d times: %s", times, rounds, end)
				}
			}
			t.Log(seen)
		})
	}
}

// brief returns the status of a response, with the error code.
func (r *response) brief() string {
	if r.status < 400 {
		return fmt.Sprint(r.status)
	}
	return fmt.Sprint(r.status, " ", r.error().Code)
}

// heldUp is allAtOnce with the rows of the pet locked until some of the calls wait for them. Calls to
// one server share a statement, so that one of them waits.
func (s scene) heldUp(n, waiting int, send func(i int) (*response, error)) []*response {
	s.t.Helper()
	tx := pgtest.Begin(s.t, s.db)
	pgtest.Exec(s.t, tx, `
		SELECT inventory.pet_id
		FROM inventory
		JOIN pets ON pets.account_id = $1 AND pets.id = inventory.pet_id
		WHERE inventory.account_id = $1 AND pets.id = $2
		FOR UPDATE`, s.accountID(), s.pet)
	released := background(func() error { return errors.Join(s.awaitWaiting(waiting), tx.Rollback(s.t.Context())) })
	responses := allAtOnce(s.t, n, send)
	need.OK(s.t, released())
	return responses
}

// locked takes a lock of an account, as another program does, until release or the end of the test.
func (p *petstore) locked(account int64, lock func(*db.Queries, context.Context, int64) error) (release func()) {
	p.t.Helper()
	tx := pgtest.Begin(p.t, p.db)
	need.OK(p.t, lock(db.New(tx), p.t.Context(), account))
	return func() {
		p.t.Helper()
		pgtest.Rollback(p.t, tx)
	}
}

// awaitWaiting waits until n connections of the database wait for a lock.
func (p *petstore) awaitWaiting(n int) error {
	p.mustBeAlone()
	ctx, cancel := context.WithTimeout(p.t.Context(), 20*time.Second)
	defer cancel()
	return pgtest.AwaitLockWaiters(ctx, p.db, n)
}

// storm has many clients that change a few pets on two servers at random.
type storm struct {
	servers [2]*petstore
	pets    []int64

	mu        sync.Mutex
	lastOrder int64
	seen      map[string]int // "place 201"
}

func newStorm(t *testing.T, pets int, stock int64) *storm {
	t.Helper()
	database := pgtest.New(t)
	s := &storm{servers: [2]*petstore{startOn(t, database), startOn(t, database)}, seen: map[string]int{}}
	for i := range pets {
		s.pets = append(s.pets, s.servers[0].newPet(fmt.Sprint("pet ", i), stock))
	}
	return s
}

// stormEvent is one kind of event: a request for a pet and an order.
type stormEvent struct {
	name    string
	weight  int
	request func(pet, order int64) (method, target string, body any)
}

var (
	stormPlace = stormEvent{"place", 6, func(pet, _ int64) (method, target string, body any) {
		return "POST", "/store/orders", object{"petId": pet, "quantity": 1 + rand.IntN(5)}
	}}
	stormComplete = stormEvent{"complete", 3, func(_, order int64) (method, target string, body any) {
		return "PATCH", fmt.Sprintf("/store/orders/%d", order), object{"complete": true}
	}}
	stormCancel = stormEvent{"cancel", 3, func(_, order int64) (method, target string, body any) {
		return "DELETE", fmt.Sprintf("/store/orders/%d", order), nil
	}}
	stormStock = stormEvent{"stock", 3, func(pet, _ int64) (method, target string, body any) {
		return "PUT", fmt.Sprintf("/store/inventory/%d", pet), object{"quantity": rand.IntN(10)}
	}}
	stormStatus = stormEvent{"status", 2, func(pet, _ int64) (method, target string, body any) {
		return "PATCH", fmt.Sprintf("/pets/%d", pet), object{"status": []string{"available", "pending", "sold"}[rand.IntN(3)]}
	}}
	stormDelete = stormEvent{"delete", 1, func(pet, _ int64) (method, target string, body any) {
		return "DELETE", fmt.Sprintf("/pets/%d", pet), nil
	}}
)

// rage runs workers that send this many requests each. No request may fail with
// 5xx, and there must be no deadlock, not even one that a retry has resolved.
func (s *storm) rage(t *testing.T, workers, requests int, events ...stormEvent) {
	t.Helper()
	var mix []stormEvent
	for _, event := range events {
		mix = append(mix, slices.Repeat([]stormEvent{event}, event.weight)...)
	}
	before := s.deadlocks(t)
	atOnce(t, workers, func(worker int) error {
		for range requests {
			event := mix[rand.IntN(len(mix))]
			method, target, body := event.request(s.pets[rand.IntN(len(s.pets))], s.anyOrder())
			resp, err := s.servers[worker%2].try(method, target, body)
			if err != nil {
				return err
			}
			s.note(event, resp)
		}
		return nil
	})
	for event, times := range s.seen {
		var name string
		var status int
		need.Value(fmt.Sscan(event, &name, &status))(t)
		if !slices.Contains([]int{200, 201, 204, 404, 409, 422}, status) {
			t.Errorf("%s: %d times", event, times)
		}
	}
	for _, success := range []string{"place 201", "complete 200", "cancel 204"} {
		if s.seen[success] == 0 {
			t.Errorf("%s: never, so this test proves nothing", success)
		}
	}
	need.Same(t, before, s.deadlocks(t), "deadlocks, as before")
	t.Log(s.seen)
}

// anyOrder returns the id of an order that may exist, usually a recent one.
func (s *storm) anyOrder() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return max(1, s.lastOrder-rand.Int64N(20))
}

func (s *storm) note(event stormEvent, resp *response) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.seen[fmt.Sprint(event.name, " ", resp.status)]++
	if event.name == stormPlace.name && resp.status == 201 {
		s.lastOrder = max(s.lastOrder, decode[order](resp).ID)
	}
}

// deadlocks counts the deadlocks of the database so far. A connection reports its
// own with a delay, or on demand.
func (s *storm) deadlocks(t *testing.T) (count int64) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	for _, server := range s.servers {
		for _, conn := range server.pool.Pool().AcquireAllIdle(ctx) {
			_, err := conn.Exec(ctx, "SELECT pg_stat_force_next_flush()")
			conn.Release()
			need.OK(t, err)
		}
	}
	need.OK(t, s.servers[0].db.QueryRow(ctx, "SELECT deadlocks FROM pg_stat_database WHERE datname = current_database()").Scan(&count))
	return count
}

// wantPets fails the test for every pet that violates the condition. The condition may name status,
// quantity, held, open (units of open orders) and ordered (units of all orders).
func (s *storm) wantPets(t *testing.T, condition string) {
	t.Helper()
	for _, pet := range pgtest.List[string](t, s.servers[0].db, `
		SELECT format('pet %s is %s: %s in stock, %s held, open orders of %s, orders of %s', id, status, quantity, held, open, ordered)
		FROM (
			SELECT pets.id, pets.status, inventory.quantity, inventory.held,
			       (SELECT coalesce(sum(quantity), 0) FROM orders WHERE account_id = $1 AND pet_id = pets.id AND NOT complete) AS open,
			       (SELECT coalesce(sum(quantity), 0) FROM orders WHERE account_id = $1 AND pet_id = pets.id)                  AS ordered
			FROM pets
			LEFT JOIN inventory ON inventory.account_id = $1 AND inventory.pet_id = pets.id
			WHERE pets.account_id = $1
		) AS pet
		WHERE (`+condition+`) IS NOT true`, s.servers[0].accountID()) {
		t.Errorf("%s, want %s", pet, condition)
	}
}

// TestStormOfOrders: orders alone preserve the number of units, and the status always follows the stock.
func TestStormOfOrders(t *testing.T) {
	t.Parallel()
	s := newStorm(t, 4, 30)
	s.rage(t, 8, 60, stormPlace, stormComplete, stormCancel)
	s.wantPets(t, "held = open AND quantity + ordered = 30")
	s.wantPets(t, "status = CASE WHEN quantity > 0 THEN 'available' WHEN held > 0 THEN 'pending' ELSE 'sold' END")
}

// TestStormOfEverything: whatever clients do, the held units equal the units of the open orders.
func TestStormOfEverything(t *testing.T) {
	t.Parallel()
	s := newStorm(t, 8, 10)
	s.rage(t, 8, 80, stormPlace, stormComplete, stormCancel, stormStock, stormStatus, stormDelete)
	s.wantPets(t, "held = open AND quantity >= 0")
}

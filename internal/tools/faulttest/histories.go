package main

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"syscall"
	"time"

	"github.com/anishathalye/porcupine"

	"petstore/internal/sleep"
	"petstore/internal/stock"
	"petstore/internal/tools/must"
)

// crashHistories is row 30: the histories of hot pets at two instances stay linearizable
// when an instance is killed. The same holds when PostgreSQL is stopped without a
// checkpoint (pg_ctl stop -m immediate) and restarted. A step without a response, or with
// a 503, may take effect at any later moment, or never. The instances are ready within 3 seconds.
// Half of the clients share hot pets of one store, and the others one hot pet in each of many.
func crashHistories(ctx context.Context, f *fixture) string {
	const clients, hotPets, hotStores, stock, rounds = 16, 8, 12, 5, 2
	s := f.open(ctx)
	instances := s.startSecond(ctx)
	var hot [2][]petName
	for pet := range hotPets {
		hot[0] = append(hot[0], petName{0, 1 + pet})
	}
	for store := range hotStores {
		hot[1] = append(hot[1], petName{1 + store, 1})
	}
	for _, p := range slices.Concat(hot[:]...) {
		s.api.store(p.store).setStock(ctx, p.pet, stock)
	}
	h := &history{began: time.Now()}
	stopping, stop := context.WithCancel(ctx)
	defer stop()
	wait := must.Background(func() {
		must.Parallel(2*clients, func(id int) {
			v := &visitor{id: id, instances: instances, open: map[petName][]int64{}}
			for stopping.Err() == nil {
				h.hotStep(ctx, v, hot[id%2])
			}
		})
	})
	s.crash(ctx, instances, rounds)
	stop()
	wait()
	return h.check(stock) + "; " + s.checkStores(ctx)
}

// crash restarts PostgreSQL and then kills and restarts an instance, in each round a
// different one.
func (s *deployment) crash(ctx context.Context, instances [2]*service, rounds int) {
	const pause, readyWithin = 300 * time.Millisecond, 3 * time.Second
	ready := func() {
		for _, instance := range instances {
			instance.awaitReady(ctx, readyWithin)
		}
		sleep.For(ctx, pause)
	}
	sleep.For(ctx, pause)
	for round := range rounds {
		s.db.start(ctx) // stops PostgreSQL in immediate mode first
		ready()
		killed := instances[round%len(instances)]
		killed.kill()
		sleep.For(ctx, pause)
		killed.start()
		ready()
	}
}

// hotStep does a random step at a random instance. It retries a step that was not sent.
// After an unknown outcome it reads all hot pets. So a crash leaves at most one unknown
// outcome for each client, and its effect is read before others change it.
func (h *history) hotStep(ctx context.Context, v *visitor, hot []petName) {
	const plenty = 100
	did := v.randomStep(hot[rand.N(len(hot))])
	if (did.store+did.pet)%2 == 0 {
		did.quantity = rand.N(plenty) // so that most orders change the stock
	}
	if h.stepUntilSent(ctx, v, did) {
		return
	}
	for _, pet := range hot {
		for !h.stepUntilSent(ctx, v, petStep{petName: pet, kind: "read"}) {
		}
	}
}

// stepUntilSent does a step, retries it while connections are refused, and reports whether
// its outcome is known.
func (h *history) stepUntilSent(ctx context.Context, v *visitor, did petStep) (known bool) {
	const pause = 10 * time.Millisecond
	for ; ; sleep.For(ctx, pause) {
		must.OK(context.Cause(ctx))
		called := time.Now()
		saw, sent := v.step(ctx, rand.N(len(v.instances)), did)
		if !sent {
			continue
		}
		h.record(v.id, did, called, saw)
		if saw.unknown {
			sleep.For(ctx, pause)
		}
		return !saw.unknown
	}
}

// history records what clients did to pets and what they saw. It is safe for concurrent
// use.
type history struct {
	began      time.Time
	mu         sync.Mutex
	operations []porcupine.Operation
	unknown    int
}

// record records a step that began at called and has ended now. A step of unknown outcome
// has no end, so porcupine may order it anywhere after its beginning, and at the end if it
// never happened. A read of unknown outcome is not recorded.
func (h *history) record(client int, did petStep, called time.Time, saw petView) {
	returned := time.Since(h.began).Nanoseconds()
	h.mu.Lock()
	defer h.mu.Unlock()
	if saw.unknown {
		if did.kind == "read" {
			return
		}
		returned = math.MaxInt64
		h.unknown++
	}
	h.operations = append(h.operations, porcupine.Operation{
		ClientId: client, Input: did, Call: called.Sub(h.began).Nanoseconds(), Output: saw, Return: returned,
	})
}

// check fails the row unless the history of each pet is linearizable, with that many units in
// stock at first.
func (h *history) check(stock int) string {
	const checking = 20 * time.Second
	figures := fmt.Sprintf("%d operations", len(h.operations))
	if h.unknown > 0 {
		figures += fmt.Sprintf(", unknown outcomes: %d", h.unknown)
	}
	verdict := porcupine.CheckOperationsTimeout(petModel(stock), h.operations, checking)
	must.Hold(verdict != porcupine.Illegal, "%s, not linearizable", figures)
	must.Hold(verdict == porcupine.Ok, "%s: porcupine did not decide within %s whether they are linearizable", figures, checking)
	return figures + ", linearizable"
}

// petStep is an operation on a pet of a store, and petView what the client sees of it.
type (
	petName struct{ store, pet int }
	petStep struct {
		petName

		kind     string
		quantity int          // for restock
		status   stock.Status // for setStatus
		order    int64        // for complete and cancel, an order of one unit
	}
	petView struct {
		item    stockItem // for read and restock
		placed  int64     // for buy, the order; the model does not know the ids
		refusal string    // the error code of a 409
		// unknown means that the step may have taken effect, may do so later, or never.
		unknown bool
	}
)

// stepKinds are drawn at random, so buy is the most frequent kind. A client without an
// open order buys instead of the last two.
var stepKinds = []string{"buy", "buy", "buy", "read", "restock", "setStatus", "complete", "cancel"}

// stepStatuses are drawn at random.
var stepStatuses = []stock.Status{stock.Available, stock.Pending, stock.Sold}

// visitor is a client of two instances that remembers its open orders. Only the visitor
// that placed an order completes or cancels it, and at most once.
type visitor struct {
	id        int
	instances [2]*service
	open      map[petName][]int64 // orders
}

// randomStep draws a step. A step that completes or cancels an order uses it up.
func (v *visitor) randomStep(pet petName) petStep {
	const fewUnits = 4
	did := petStep{
		petName: pet, kind: stepKinds[rand.N(len(stepKinds))],
		quantity: rand.N(fewUnits), status: stepStatuses[rand.N(len(stepStatuses))],
	}
	if did.kind == "complete" || did.kind == "cancel" {
		open := v.open[pet]
		if len(open) == 0 {
			did.kind = "buy"
			return did
		}
		did.order, v.open[pet] = open[0], open[1:]
	}
	return did
}

// step does one step at an instance. sent is false if the connection was refused.
func (v *visitor) step(ctx context.Context, instance int, did petStep) (saw petView, sent bool) {
	resp, err := v.instances[instance].store(did.store).send(ctx, did.request())
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return saw, false
	case err != nil || resp.status == http.StatusServiceUnavailable:
		saw.unknown = true
	case resp.status == http.StatusConflict:
		saw.refusal = resp.code()
	case resp.status == http.StatusCreated && did.kind == "buy":
		saw.placed = decode[order](resp).ID
		v.open[did.petName] = append(v.open[did.petName], saw.placed)
	case resp.status == http.StatusOK && (did.kind == "read" || did.kind == "restock"):
		saw.item = decode[stockItem](resp)
	case resp.status == http.StatusOK && did.kind != "cancel", resp.status == http.StatusNoContent && did.kind == "cancel":
	default:
		must.Hold(false, "%s of %v: %s", did.kind, did.petName, resp)
	}
	return saw, true
}

// request returns the request of a step.
func (did petStep) request() request {
	item, order := fmt.Sprintf("/store/inventory/%d", did.pet), fmt.Sprintf("/store/orders/%d", did.order)
	switch did.kind {
	case "read":
		return newRequest("GET", item, "")
	case "restock":
		return newRequest("PUT", item, fmt.Sprintf(`{"quantity": %d}`, did.quantity))
	case "setStatus":
		return newRequest("PATCH", fmt.Sprintf("/pets/%d", did.pet), fmt.Sprintf(`{"status": %q}`, did.status))
	case "complete":
		return newRequest("PATCH", order, `{"complete": true}`)
	case "cancel":
		return newRequest("DELETE", order, "")
	default:
		return newRequest("POST", "/store/orders", fmt.Sprintf(`{"petId": %d}`, did.pet))
	}
}

// petModel models a pet with that many units in stock at first. Its rules come from
// [stock.State], which the server uses too. So the checker does not test the rules: the
// table tests of package stock do. It tests that the server applies them to the pet one
// step at a time and forgets no step. The clients could observe the order of the steps.
func petModel(units int) porcupine.Model {
	return porcupine.Model{
		Partition: func(all []porcupine.Operation) [][]porcupine.Operation {
			byPet := map[petName][]porcupine.Operation{}
			for _, operation := range all {
				pet := operation.Input.(petStep).petName //nolint:forcetypeassert // the history holds only petSteps
				byPet[pet] = append(byPet[pet], operation)
			}
			return slices.Collect(maps.Values(byPet))
		},
		Init: func() any { return stock.State{Quantity: int64(units), Status: stock.Available} },
		Step: func(state, input, output any) (bool, any) {
			//nolint:forcetypeassert // the history holds nothing else
			now, did, saw := state.(stock.State), input.(petStep), output.(petView)
			expected, next := did.on(now)
			expected.placed = saw.placed
			return saw.unknown || saw == expected, next
		},
	}
}

// on returns what a client must see of a step, and the state of the pet after it.
func (did petStep) on(now stock.State) (saw petView, next stock.State) {
	const units = 1 // of each order
	var err error
	switch next = now; did.kind {
	case "read":
		saw.item = itemOf(next)
	case "restock":
		next = now.Restock(int64(did.quantity))
		saw.item = itemOf(next)
	case "setStatus":
		next, err = now.SetStatus(did.status)
	case "complete":
		next = now.Complete(units)
	case "cancel":
		next = now.Cancel(units)
	default:
		next, err = now.Place(units)
	}
	saw.refusal = refusals[err]
	return saw, next
}

// refusals are the error codes of the API for the errors of package stock.
var refusals = map[error]string{
	stock.ErrNotAvailable:      "pet_not_available",
	stock.ErrInsufficient:      "insufficient_stock",
	stock.ErrInvalidTransition: "invalid_transition",
}

func itemOf(s stock.State) stockItem { return stockItem{int(s.Quantity), string(s.Status)} }

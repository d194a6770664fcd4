package main

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"

	"petstore/internal/tools/must"
)

// oversell is row 1: exactly the units in stock are sold, with any number of buyers and
// instances, in one busy store and in many small ones. The buyers of the small ones buy until
// nothing is left.
func oversell(ctx context.Context, f *fixture) string {
	const buyers, stock, fewBuyers, few, pet = 200, 100, 6, 30, 1 // few in each of the small stores
	s := f.open(ctx)
	units := [1 + smallStores]int{stock}
	for store := range units {
		units[store] = max(units[store], few)
		s.api.store(store).setStock(ctx, pet, units[store])
	}
	instances := s.startSecond(ctx)
	s.sellElsewhere(ctx, pet+1)
	var sales [1 + smallStores]ledger
	stores := spread(buyers, fewBuyers*smallStores)
	must.Parallel(len(stores), func(buyer int) {
		store := stores[buyer]
		for again := true; again; {
			resp, err := instances[buyer%2].store(store).order(ctx, pet)
			sales[store].record(resp, err)
			again = store > 0 && resp.status == http.StatusCreated
		}
	})
	for store := range sales {
		l, left := &sales[store], s.api.store(store).stock(ctx, pet)
		l.wantOnly(http.StatusCreated, http.StatusConflict)
		must.Hold(l.count(http.StatusCreated) == units[store] && left.Quantity == 0, "store %d: %s, stock %d, want %d × 201, stock 0", store, l.summary(), left.Quantity, units[store])
	}
	return fmt.Sprintf("%s, stock 0, slowest %s; each of %d small stores: %s, stock 0; %s",
		sales[0].summary(), round(sales[0].slowest), smallStores, sales[1].summary(), s.checkStores(ctx))
}

// sellElsewhere sells all units of a pet in another session. It fails the row if an order of
// a small store succeeds that came before the other session has committed.
func (s *deployment) sellElsewhere(ctx context.Context, pet int) {
	const orders = 5
	wait := must.Background(func() {
		s.db.exec(ctx, fmt.Sprintf("UPDATE inventory SET quantity = 0 WHERE pet_id = %d; SELECT pg_sleep(0.5)", pet)) // in one transaction
	})
	must.Await(ctx, time.Second, func() {
		must.Hold(s.db.count(ctx, "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'") > 0, "the other session has not sold the units")
	})
	must.Parallel(orders, func(number int) {
		must.Get(s.api.store(1+number).order(ctx, pet)).check(http.StatusConflict)
	})
	wait()
}

// linearizable is row 2: the histories of three pets of one store, and of one pet of each
// small store, are linearizable. Their clients use two instances. The checker is porcupine.
func linearizable(ctx context.Context, f *fixture) string {
	const clients, clientsOfPet, few, steps, stock = 24, 8, 3, 30, 5
	s := f.open(ctx)
	stores := spread(clients, few*smallStores)
	petOf := func(id int) petName {
		if stores[id] > 0 {
			return petName{stores[id], 1}
		}
		return petName{0, 1 + id/clientsOfPet}
	}
	for id := range clients + smallStores {
		s.api.store(stores[id]).setStock(ctx, petOf(id).pet, stock)
	}
	instances := s.startSecond(ctx)
	h := &history{began: time.Now()}
	must.Parallel(len(stores), func(id int) {
		v := &visitor{id: id, instances: instances, open: map[petName][]int64{}}
		for range steps {
			did := v.randomStep(petOf(id))
			called := time.Now()
			saw, sent := v.step(ctx, id%len(instances), did)
			must.Hold(sent && !saw.unknown, "%s: unknown outcome without a fault", did.kind)
			h.record(id, did, called, saw)
		}
	})
	return h.check(stock) + "; " + s.checkStores(ctx)
}

// crashHistories is row 30: the histories of hot pets at two instances stay linearizable
// when an instance is killed. The same holds when PostgreSQL is stopped without a
// checkpoint (pg_ctl stop -m immediate) and restarted. A step without a response, or with
// a 503, may take effect at any later moment, or never. Half of the clients share hot pets
// of one store, and the others one hot pet in each of many.
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
	const pause, readyWithin = 300 * time.Millisecond, 5 * time.Second
	ready := func() {
		for _, instance := range instances {
			instance.awaitReady(ctx, readyWithin)
		}
		sleep(ctx, pause)
	}
	sleep(ctx, pause)
	for round := range rounds {
		s.db.start(ctx) // stops PostgreSQL in immediate mode first
		ready()
		killed := instances[round%len(instances)]
		killed.kill()
		sleep(ctx, pause)
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
	for ; ; sleep(ctx, pause) {
		must.OK(context.Cause(ctx))
		called := time.Now()
		saw, sent := v.step(ctx, rand.N(len(v.instances)), did)
		if !sent {
			continue
		}
		h.record(v.id, did, called, saw)
		if saw.unknown {
			sleep(ctx, pause)
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

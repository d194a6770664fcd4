package main

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"

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

package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"syscall"
	"time"

	"github.com/anishathalye/porcupine"
)

// crashHistories is row 30: the histories of hot pets at two instances stay linearizable
// when an instance is killed. The same holds when PostgreSQL is stopped without a
// checkpoint (pg_ctl stop -m immediate) and restarted. A step without a response, or with
// a 503, may take effect at any later moment, or never.
func crashHistories(ctx context.Context, f *fixture) (string, error) {
	const clients, hotPets, stock, rounds = 16, 8, 5, 2
	s, err := f.open(ctx)
	if err != nil {
		return "", err
	}
	other, err := s.serve(ctx, s.db.url())
	if err != nil {
		return "", err
	}
	for pet := range hotPets {
		if err := s.setStock(ctx, 1+pet, stock); err != nil {
			return "", err
		}
	}
	services := [2]*service{s.api, other}
	instances := [2]*client{s.client, {base: other.url(), key: s.key}}
	h := newHistory()
	stopping, stop := context.WithCancel(ctx)
	failures := make([]error, clients)
	var group sync.WaitGroup
	for id := range clients {
		v := &visitor{id: id, instances: instances, open: map[int][]int64{}}
		group.Go(func() {
			for stopping.Err() == nil && failures[id] == nil {
				failures[id] = h.hotStep(ctx, v, hotPets)
			}
		})
	}
	err = s.crash(ctx, services, rounds)
	stop()
	group.Wait()
	if err := errors.Join(err, errors.Join(failures...)); err != nil {
		return "", err
	}
	return h.check(stock)
}

// crash restarts PostgreSQL and then kills and restarts an instance, in each round a
// different one.
func (s *deployment) crash(ctx context.Context, services [2]*service, rounds int) error {
	const pause, readyWithin = 300 * time.Millisecond, 5 * time.Second
	ready := func() error {
		for _, service := range services {
			if _, err := service.awaitReady(ctx, readyWithin); err != nil {
				return err
			}
		}
		sleep(ctx, pause)
		return nil
	}
	sleep(ctx, pause)
	for round := range rounds {
		if err := s.db.start(ctx); err != nil { // stops PostgreSQL in immediate mode first
			return err
		}
		if err := ready(); err != nil {
			return err
		}
		killed := services[round%len(services)]
		killed.kill()
		sleep(ctx, pause)
		if err := killed.start(); err != nil {
			return err
		}
		if err := ready(); err != nil {
			return err
		}
	}
	return nil
}

// hotStep does a random step at a random instance. It retries a step that was not sent.
// After an unknown outcome it reads all hot pets. So a crash leaves at most one unknown
// outcome for each client, and its effect is read before others change it.
func (h *history) hotStep(ctx context.Context, v *visitor, hotPets int) error {
	const plenty = 100
	did := v.randomStep(1 + rand.N(hotPets))
	if did.pet%2 == 0 {
		did.quantity = rand.N(plenty) // so that most orders change the stock
	}
	unknown, err := h.stepUntilSent(ctx, v, did)
	for pet := 0; pet < hotPets && unknown && err == nil; pet++ {
		for again := true; again && err == nil; {
			again, err = h.stepUntilSent(ctx, v, petStep{kind: "read", pet: 1 + pet})
		}
	}
	return err
}

// stepUntilSent does a step, retries it while connections are refused, and reports whether
// its outcome is unknown.
func (h *history) stepUntilSent(ctx context.Context, v *visitor, did petStep) (unknown bool, err error) {
	const pause = 10 * time.Millisecond
	for ctx.Err() == nil {
		called := time.Now()
		saw, err := v.step(ctx, rand.N(len(v.instances)), did)
		if err == nil {
			h.record(v.id, did, called, saw)
			if saw.unknown {
				sleep(ctx, pause)
			}
			return saw.unknown, nil
		}
		if !errors.Is(err, syscall.ECONNREFUSED) {
			return false, err
		}
		sleep(ctx, pause)
	}
	return false, context.Cause(ctx)
}

// history records what clients did to pets and what they saw. It is safe for concurrent
// use.
type history struct {
	began      time.Time
	mu         sync.Mutex
	operations []porcupine.Operation
	clients    map[int]bool
	pets       map[int]bool
	unknown    int
}

func newHistory() *history {
	return &history{began: time.Now(), clients: map[int]bool{}, pets: map[int]bool{}}
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
	h.clients[client], h.pets[did.pet] = true, true
	h.operations = append(h.operations, porcupine.Operation{
		ClientId: client, Input: did, Call: called.Sub(h.began).Nanoseconds(), Output: saw, Return: returned,
	})
}

// check returns an error unless the history of each pet is linearizable, with that many
// units in stock at first.
func (h *history) check(stock int) (string, error) {
	const checking = 20 * time.Second
	figures := fmt.Sprintf("%d operations of %d clients, pets: %d", len(h.operations), len(h.clients), len(h.pets))
	if h.unknown > 0 {
		figures += fmt.Sprintf(", unknown outcomes: %d", h.unknown)
	}
	switch verdict := porcupine.CheckOperationsTimeout(petModel(stock), h.operations, checking); verdict {
	case porcupine.Ok:
		return figures + ", linearizable", nil
	case porcupine.Illegal:
		return "", fmt.Errorf("%s, not linearizable", figures)
	default:
		return "", fmt.Errorf("%s: porcupine did not decide within %s whether they are linearizable", figures, checking)
	}
}

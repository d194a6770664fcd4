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
)

// Row 30. The histories of hot pets at two instances stay linearizable when an
// instance is killed, and when PostgreSQL is stopped without a checkpoint
// (pg_ctl stop -m immediate) and started again. A step without a response, or with
// a 503, may have happened at any later moment, or never.
func crashHistories(ctx context.Context, b *bench) (string, error) {
	const clients, hotPets, stock, rounds = 16, 8, 5, 2
	s, err := b.open(ctx)
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
		group.Go(func() {
			for stopping.Err() == nil && failures[id] == nil {
				failures[id] = h.hotStep(ctx, id, instances, hotPets)
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

// crash stops PostgreSQL and starts it again, and then kills an instance and starts
// it again, in each round another one.
func (s *shop) crash(ctx context.Context, services [2]*service, rounds int) error {
	const pause, readyWithin = 300 * time.Millisecond, 5 * time.Second
	ready := func() error {
		for _, service := range services {
			if _, err := service.ready(ctx, readyWithin); err != nil {
				return err
			}
		}
		wait(ctx, pause)
		return nil
	}
	wait(ctx, pause)
	for round := range rounds {
		if err := s.db.start(ctx); err != nil { // stops it as -m immediate does
			return err
		}
		if err := ready(); err != nil {
			return err
		}
		killed := services[round%len(services)]
		killed.kill()
		wait(ctx, pause)
		if err := killed.start(); err != nil {
			return err
		}
		if err := ready(); err != nil {
			return err
		}
	}
	return nil
}

// hotStep does a random step at a random instance, again if nothing was sent. A
// client that does not learn the outcome then reads all hot pets: each crash leaves
// at most one unknown outcome for each client, and is looked at before others
// change what it left.
func (h *history) hotStep(ctx context.Context, client int, instances [2]*client, hotPets int) error {
	const few, plenty = 4, 100
	did := randomStep(1 + rand.N(hotPets))
	if did.quantity = rand.N(few); did.pet%2 == 0 {
		did.quantity = rand.N(plenty) // so that most orders change the stock
	}
	unknown, err := h.stepUntilSent(ctx, client, instances, did)
	for pet := 0; pet < hotPets && unknown && err == nil; pet++ {
		for again := true; again && err == nil; {
			again, err = h.stepUntilSent(ctx, client, instances, petStep{kind: "read", pet: 1 + pet})
		}
	}
	return err
}

// stepUntilSent does a step, again while connections are refused, and reports
// whether its outcome is unknown.
func (h *history) stepUntilSent(ctx context.Context, client int, instances [2]*client, did petStep) (unknown bool, err error) {
	const pause = 10 * time.Millisecond
	for ctx.Err() == nil {
		called := time.Now()
		saw, err := instances[rand.N(len(instances))].step(ctx, did)
		if err == nil {
			h.note(client, did, called, saw)
			if saw.unknown {
				wait(ctx, pause)
			}
			return saw.unknown, nil
		}
		if !errors.Is(err, syscall.ECONNREFUSED) {
			return false, err
		}
		wait(ctx, pause)
	}
	return false, context.Cause(ctx)
}

// petStep is what a client does to a pet, and petView what it sees of it.
type (
	petStep struct {
		kind     string
		pet      int
		quantity int // to set
	}
	petView struct {
		item    stockItem // read or set
		bought  bool
		refusal string // the code of a 409
		// unknown means that the step may have happened, may happen later, and may
		// never happen.
		unknown bool
	}
)

// stepKinds are drawn at random, so twice as many buy as set.
var stepKinds = []string{"buy", "buy", "read", "set"}

func randomStep(pet int) petStep {
	return petStep{kind: stepKinds[rand.N(len(stepKinds))], pet: pet, quantity: rand.N(4)}
}

// step does one thing to a pet. The error is ECONNREFUSED when nothing was sent,
// or says that the response is none that may be.
func (c *client) step(ctx context.Context, did petStep) (saw petView, err error) {
	path := fmt.Sprintf("/store/inventory/%d", did.pet)
	var a answer
	switch did.kind {
	case "read":
		a, err = c.do(ctx, "GET", path, "")
	case "set":
		a, err = c.do(ctx, "PUT", path, fmt.Sprintf(`{"quantity": %d}`, did.quantity))
	default:
		a, err = c.order(ctx, did.pet)
	}
	switch {
	case errors.Is(err, syscall.ECONNREFUSED):
		return saw, err
	case err != nil || a.status == http.StatusServiceUnavailable:
		return petView{unknown: true}, nil //nolint:nilerr // the outcome is what the client saw
	case did.kind != "buy" && a.status == http.StatusOK:
		return saw, a.decode(&saw.item)
	case did.kind == "buy" && a.status == http.StatusCreated:
		return petView{bought: true}, nil
	case did.kind == "buy" && a.status == http.StatusConflict:
		return petView{refusal: a.code()}, nil
	default:
		return saw, fmt.Errorf("a %s of pet %d: %s", did.kind, did.pet, a)
	}
}

// history is what clients did to pets, and saw of them. It is safe for concurrent
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

// note notes a step that began at a time and has ended now. One of unknown outcome
// has no end: porcupine may put it anywhere after its begin, and one that never
// happened goes behind all others. A read of unknown outcome tells nothing.
func (h *history) note(client int, did petStep, called time.Time, saw petView) {
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

// check says whether the history of each pet is linearizable, if it had that many
// units in stock at first.
func (h *history) check(stock int) (string, error) {
	const checking = 20 * time.Second
	figures := fmt.Sprintf("%d operations of %d clients on %d pets", len(h.operations), len(h.clients), len(h.pets))
	if h.unknown > 0 {
		figures += fmt.Sprintf(" (%d of unknown outcome)", h.unknown)
	}
	switch verdict := porcupine.CheckOperationsTimeout(petModel(stock), h.operations, checking); verdict {
	case porcupine.Ok:
		return figures + " are linearizable", nil
	case porcupine.Illegal:
		return "", fmt.Errorf("%s are not linearizable", figures)
	default:
		return "", fmt.Errorf("%s: porcupine did not find out within %s whether they are linearizable", figures, checking)
	}
}

// petModel is the rule for orders and stock (see POST /store/orders in the API
// reference) for pets of which some units are held. Nobody completes or cancels.
func petModel(stock int) porcupine.Model {
	return porcupine.Model{
		Partition: func(all []porcupine.Operation) [][]porcupine.Operation {
			byPet := map[int][]porcupine.Operation{}
			for _, operation := range all {
				pet := operation.Input.(petStep).pet //nolint:forcetypeassert // the history holds nothing else
				byPet[pet] = append(byPet[pet], operation)
			}
			return slices.Collect(maps.Values(byPet))
		},
		Init: func() any { return petState{stock: stock, available: true} },
		Step: func(state, input, output any) (bool, any) {
			//nolint:forcetypeassert // the history holds nothing else
			now, did, saw := state.(petState), input.(petStep), output.(petView)
			expected, next := now.after(did)
			return saw.unknown || saw == expected, next
		},
	}
}

// petState is the pet between two steps; one that is not available is pending.
type petState struct {
	stock     int
	available bool
	held      bool // whether any order is open
}

// after returns what a client must see of a step, and the state after it.
func (p petState) after(did petStep) (petView, petState) {
	switch {
	case did.kind == "read":
		return petView{item: p.item()}, p
	case did.kind == "set":
		p.stock = did.quantity
		if p.stock > 0 {
			p.available = true
		} else if p.held {
			p.available = false
		}
		return petView{item: p.item()}, p
	case !p.available:
		return petView{refusal: "pet_not_available"}, p
	case p.stock == 0:
		return petView{refusal: "insufficient_stock"}, p
	default:
		p.stock, p.held = p.stock-1, true
		p.available = p.stock > 0
		return petView{bought: true}, p
	}
}

func (p petState) item() stockItem {
	if p.available {
		return stockItem{p.stock, "available"}
	}
	return stockItem{p.stock, "pending"}
}

package main

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"slices"
	"sync"
	"time"

	"github.com/anishathalye/porcupine"
)

// Row 1. However many want to buy at once, and at however many instances, exactly
// what is in stock is sold.
func oversell(ctx context.Context, b *bench) (string, error) {
	const buyers, stock, pet = 200, 100, 1
	s, err := b.openJudged(ctx)
	if err != nil {
		return "", err
	}
	instances, err := s.sellAtTwo(ctx, pet, stock)
	if err != nil {
		return "", err
	}
	var group sync.WaitGroup
	var l ledger
	for buyer := range buyers {
		group.Go(func() { l.note(instances[buyer%len(instances)].order(ctx, pet)) })
	}
	group.Wait()
	left, err := s.stock(ctx, pet)
	figures := fmt.Sprintf("%s, stock %d, slowest %s; %d exchanges judged", l.count(), left.Quantity, round(l.slowest), s.client.judge.judged.Load())
	if err != nil {
		return "", err
	}
	if l.statuses[http.StatusCreated] != stock || l.statuses[http.StatusConflict] != buyers-stock || left.Quantity != 0 {
		return "", errors.Join(fmt.Errorf("%s; want %d × 201, %d × 409 and none in stock", figures, stock, buyers-stock),
			l.only(http.StatusCreated, http.StatusConflict))
	}
	return figures, nil
}

// sellAtTwo puts units of a pet in stock, and starts a second instance.
func (s *shop) sellAtTwo(ctx context.Context, pet, units int) (instances [2]*client, err error) {
	if _, err := s.setStock(ctx, pet, units); err != nil {
		return instances, err
	}
	other, err := s.another(ctx)
	return [2]*client{s.client, other}, err
}

// Row 2. The history of one pet, as the clients of two instances saw it, is one that could have
// happened one step after the other (linearizable; the checker is porcupine).
func linearizable(ctx context.Context, b *bench) (string, error) {
	const clients, steps, pet, stock = 8, 60, 1, 5
	s, err := b.open(ctx)
	if err != nil {
		return "", err
	}
	instances, err := s.sellAtTwo(ctx, pet, stock)
	if err != nil {
		return "", err
	}
	began := time.Now()
	histories, failures := make([][]porcupine.Operation, clients), make([]error, clients)
	var group sync.WaitGroup
	for id := range clients {
		group.Go(func() {
			for range steps {
				did := petStep{kind: stepKinds[rand.N(len(stepKinds))], quantity: rand.N(4)}
				called := time.Since(began)
				saw, err := instances[id%len(instances)].step(ctx, pet, did)
				returned := time.Since(began)
				if err != nil {
					failures[id] = err
					return
				}
				histories[id] = append(histories[id], porcupine.Operation{
					ClientId: id, Input: did, Call: called.Nanoseconds(), Output: saw, Return: returned.Nanoseconds(),
				})
			}
		})
	}
	group.Wait()
	for _, err := range failures {
		if err != nil {
			return "", err
		}
	}
	history := slices.Concat(histories...)
	const checking = 20 * time.Second
	switch verdict := porcupine.CheckOperationsTimeout(petModel(stock), history, checking); verdict {
	case porcupine.Ok:
		return fmt.Sprintf("%d operations of %d clients are linearizable", len(history), clients), nil
	case porcupine.Illegal:
		return "", fmt.Errorf("%d operations of %d clients are not linearizable", len(history), clients)
	default:
		return "", fmt.Errorf("whether %d operations are linearizable: %s after %s", len(history), verdict, checking)
	}
}

// petStep is what a client does to the pet, and what it sees of it.
type (
	petStep struct {
		kind     string
		quantity int // to set
	}
	petView struct {
		item    stockItem // read or set
		bought  bool
		refusal string // the code of a 409
	}
)

// stepKinds are drawn at random, so twice as many buy as set.
var stepKinds = []string{"buy", "buy", "read", "set"}

// step does one thing to the pet.
func (c *client) step(ctx context.Context, pet int, did petStep) (saw petView, err error) {
	switch did.kind {
	case "read":
		saw.item, err = c.stock(ctx, pet)
	case "set":
		saw.item, err = c.setStock(ctx, pet, did.quantity)
	default:
		var a answer
		a, err = c.order(ctx, pet)
		saw.bought, saw.refusal = a.status == http.StatusCreated, a.code()
		if err == nil && !saw.bought && a.status != http.StatusConflict {
			err = fmt.Errorf("an order: %s", a)
		}
	}
	return saw, err
}

// petModel is the rule of section 4 of the contract for one pet, of which some
// units are held: nobody completes or cancels.
func petModel(stock int) porcupine.Model {
	return porcupine.Model{
		Init: func() any { return petState{stock: stock, available: true} },
		Step: func(state, input, output any) (bool, any) {
			//nolint:forcetypeassert // the history holds nothing else
			now, did, saw := state.(petState), input.(petStep), output.(petView)
			return now.next(did, saw)
		},
	}
}

// petState is the pet between two steps; one that is not available is pending.
type petState struct {
	stock     int
	available bool
	held      bool // whether any order is open
}

// next says whether a step could have been seen so, and what is then.
func (p petState) next(did petStep, saw petView) (bool, petState) {
	switch did.kind {
	case "read":
		return saw.item == p.item(), p
	case "set":
		p.stock = did.quantity
		if p.stock > 0 {
			p.available = true
		} else if p.held {
			p.available = false
		}
		return saw.item == p.item(), p
	}
	switch {
	case !p.available:
		return saw.refusal == "pet_not_available", p
	case p.stock == 0:
		return saw.refusal == "insufficient_stock", p
	default:
		p.stock, p.held = p.stock-1, true
		p.available = p.stock > 0
		return saw.bought, p
	}
}

func (p petState) item() stockItem {
	if p.available {
		return stockItem{p.stock, "available"}
	}
	return stockItem{p.stock, "pending"}
}

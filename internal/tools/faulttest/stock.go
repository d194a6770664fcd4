package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"
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
	figures := fmt.Sprintf("%s, stock %d, slowest %s; %d exchanges validated", l.count(), left.Quantity, round(l.slowest), s.client.judge.judged.Load())
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
	if err := s.setStock(ctx, pet, units); err != nil {
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
	h := newHistory()
	failures := make([]error, clients)
	var group sync.WaitGroup
	for id := range clients {
		group.Go(func() {
			for range steps {
				did := randomStep(pet)
				called := time.Now()
				saw, err := instances[id%len(instances)].step(ctx, did)
				if err == nil && saw.unknown {
					err = fmt.Errorf("a %s without a fault has an unknown outcome", did.kind)
				}
				if err != nil {
					failures[id] = err
					return
				}
				h.note(id, did, called, saw)
			}
		})
	}
	group.Wait()
	for _, err := range failures {
		if err != nil {
			return "", err
		}
	}
	return h.check(stock)
}

package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"
)

// oversell is row 1: exactly the units in stock are sold, with any number of buyers and
// instances.
func oversell(ctx context.Context, f *fixture) (string, error) {
	const buyers, stock, pet = 200, 100, 1
	s, err := f.openValidated(ctx)
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
		group.Go(func() { l.record(instances[buyer%len(instances)].order(ctx, pet)) })
	}
	group.Wait()
	left, err := s.stock(ctx, pet)
	figures := fmt.Sprintf("%s, stock %d, slowest %s; %d exchanges validated", l.summary(), left.Quantity, round(l.slowest), s.client.validator.validated.Load())
	if err != nil {
		return "", err
	}
	if l.statuses[http.StatusCreated] != stock || l.statuses[http.StatusConflict] != buyers-stock || left.Quantity != 0 {
		return "", errors.Join(fmt.Errorf("%s; want %d × 201, %d × 409, stock 0", figures, stock, buyers-stock),
			l.only(http.StatusCreated, http.StatusConflict))
	}
	return figures, nil
}

// sellAtTwo sets the stock of a pet and starts a second instance.
func (s *deployment) sellAtTwo(ctx context.Context, pet, units int) (instances [2]*client, err error) {
	if err := s.setStock(ctx, pet, units); err != nil {
		return instances, err
	}
	other, err := s.startSecond(ctx)
	return [2]*client{s.client, other}, err
}

// linearizable is row 2: the history of one pet, as the clients of two instances see it, is
// linearizable. The checker is porcupine.
func linearizable(ctx context.Context, f *fixture) (string, error) {
	const clients, steps, pet, stock = 8, 60, 1, 5
	s, err := f.open(ctx)
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
		v := &visitor{id: id, instances: instances, open: map[int][]int64{}}
		group.Go(func() {
			for range steps {
				did := v.randomStep(pet)
				called := time.Now()
				saw, err := v.step(ctx, id%len(instances), did)
				if err == nil && saw.unknown {
					err = fmt.Errorf("%s: unknown outcome without a fault", did.kind)
				}
				if err != nil {
					failures[id] = err
					return
				}
				h.record(id, did, called, saw)
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

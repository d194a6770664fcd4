package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

const (
	twinKeys   = 50 // Idempotency-Keys
	twinsOfKey = 40 // requests with the same key
	twinPets   = 10 // pets that the keys order
)

// killedTwins is row 33: requests with one Idempotency-Key, at two instances of which one is
// killed several times, take effect once. All responses of a key have the same id and body,
// and no request gets the response to another key. Clients see a 5xx only from the instance
// that is killed.
func killedTwins(ctx context.Context, f *fixture) (string, error) {
	s, err := f.open(ctx)
	if err != nil {
		return "", err
	}
	other, err := s.startSecond(ctx)
	if err != nil {
		return "", err
	}
	r := &twinRace{instances: [2]*client{s.client, other}, placed: make(chan int), first: map[int]response{}}
	ended := make(chan error, 1)
	go func() {
		ended <- r.run(ctx)
		close(r.placed)
	}()
	kills, err := s.killDuring(ctx, r)
	for range r.placed { // until the race ends
	}
	if err := errors.Join(<-ended, err); err != nil {
		return "", err
	}
	return fmt.Sprintf("%d orders in %d equal responses (%d requests, %d replayed, %d without a response from an instance that was killed %d times), stock exact",
		twinKeys, r.responses.Load(), r.requests.Load(), r.replayed.Load(), r.lost.Load(), kills), s.checkTwins(ctx, r)
}

// killDuring kills the first instance three times and restarts it. It returns how often: at
// least once, or there is an error. It kills the instance just after that has placed an
// order, when it runs the next group.
func (s *deployment) killDuring(ctx context.Context, r *twinRace) (kills int, err error) {
	const most, pause = 3, twinKeys / 4 // in keys
	for key := range r.placed {
		if kills == most || key < (kills+1)*pause {
			continue
		}
		s.api.kill()
		kills++
		if err := s.api.start(); err != nil {
			return kills, err
		}
		if _, err := s.api.awaitReady(ctx, 5*time.Second); err != nil {
			return kills, err
		}
	}
	if kills == 0 {
		return 0, errors.New("the race ended before the instance was killed")
	}
	return kills, nil
}

// checkTwins returns an error unless each key has one order, and the stock is exact.
func (s *deployment) checkTwins(ctx context.Context, r *twinRace) error {
	var l ledger
	for _, first := range r.first {
		var o order
		if err := first.decode(&o); err != nil {
			return err
		}
		l.placed = append(l.placed, o.ID)
	}
	var placed int
	if err := s.db.read(ctx, "SELECT count(*) FROM orders", nil, &placed); err != nil {
		return err
	}
	if placed != twinKeys {
		return fmt.Errorf("%d orders with %d keys", placed, twinKeys)
	}
	return s.audit(ctx, &l)
}

// twinRace is a race of requests with the same keys.
type twinRace struct {
	instances                           [2]*client // the first may be killed
	requests, responses, replayed, lost atomic.Int64
	// placed receives the keys of orders that the first instance has placed. It is closed
	// when the race ends.
	placed chan int

	mu    sync.Mutex
	first map[int]response // by key
}

// run sends the requests: a few keys at a time, so that groups have several keys, and new
// keys come until the end.
func (r *twinRace) run(ctx context.Context) error {
	const inUse = 5
	failures := make([]error, twinsOfKey)
	for from := 0; from < twinKeys && errors.Join(failures...) == nil; from += inUse {
		var group sync.WaitGroup
		for twin := range failures {
			group.Go(func() {
				for i := 0; i < inUse && failures[twin] == nil; i++ {
					failures[twin] = r.place(ctx, from+(twin+i)%inUse)
				}
			})
		}
		group.Wait()
	}
	return errors.Join(failures...)
}

// place sends an order with a key to a random instance, again and again until it succeeds.
// The number of units tells the orders of different keys apart.
func (r *twinRace) place(ctx context.Context, key int) error {
	const pause = 20 * time.Millisecond
	pet, units := 1+key%twinPets, 1+key
	body := fmt.Sprintf(`{"petId": %d, "quantity": %d}`, pet, units)
	for ctx.Err() == nil {
		instance := rand.N(len(r.instances))
		resp, err := r.instances[instance].do(ctx, "POST", "/store/orders", body, "Idempotency-Key", fmt.Sprint("twin-", key))
		r.requests.Add(1)
		switch {
		case err == nil && resp.status == http.StatusCreated:
			if instance == 0 && !resp.isReplay() {
				select {
				case r.placed <- key:
				default: // the instance is being restarted
				}
			}
			return r.compare(key, resp)
		case err == nil && resp.code() == "idempotency_in_progress":
		case instance == 0 && (err != nil || resp.status == http.StatusServiceUnavailable):
			r.lost.Add(1)
		case err != nil:
			return fmt.Errorf("key %d: %w", key, err)
		default:
			return fmt.Errorf("key %d: %s", key, resp)
		}
		sleep(ctx, rand.N(pause))
	}
	return context.Cause(ctx)
}

// compare returns an error unless a response belongs to its key.
func (r *twinRace) compare(key int, resp response) error {
	var o struct{ PetID, Quantity int }
	if err := resp.decode(&o); err != nil {
		return err
	}
	if o.PetID != 1+key%twinPets || o.Quantity != 1+key {
		return fmt.Errorf("key %d got the response to another key: %s", key, resp)
	}
	r.responses.Add(1)
	if resp.isReplay() {
		r.replayed.Add(1)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	first, known := r.first[key]
	if !known {
		r.first[key] = resp
		return nil
	}
	if !bytes.Equal(first.body, resp.body) || first.header.Get("Location") != resp.header.Get("Location") {
		return fmt.Errorf("key %d got two responses: %s and %s", key, first, resp)
	}
	return nil
}

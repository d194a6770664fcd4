package main

import (
	"bytes"
	"context"
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"petstore/internal/tools/must"
)

const (
	twinKeys   = 50 // Idempotency-Keys
	twinsOfKey = 40 // requests with the same key
	twinPets   = 10 // pets that the keys order
	twinsInUse = 5  // keys at a time
)

// killedTwins is row 33: requests with one Idempotency-Key, at two instances of which one is
// killed several times, take effect once. All responses of a key have the same id and body,
// and no request gets the response to another key. By turns the keys that are in use belong
// to one account, and to an account each. Clients see a 5xx only from the instance
// that is killed.
func killedTwins(ctx context.Context, f *fixture) string {
	s := f.open(ctx)
	r := &twinRace{instances: s.startSecond(ctx), placed: make(chan int), first: map[int]response{}}
	wait := must.Background(func() {
		defer close(r.placed)
		r.run(ctx)
	})
	kills := r.killDuring(ctx)
	wait()
	must.Hold(kills > 0, "the race ended before the instance was killed")
	s.checkTwins(ctx, r)
	return fmt.Sprintf("%d orders in %d equal responses (%d requests, %d replayed, %d without a response from an instance that was killed %d times), stock exact; %s",
		twinKeys, r.responses.Load(), r.requests.Load(), r.replayed.Load(), r.lost.Load(), kills, s.checkStores(ctx))
}

// killDuring kills the first instance up to six times and restarts it, until the race ends.
// It kills the instance just after that has placed an order, when it runs the next group.
func (r *twinRace) killDuring(ctx context.Context) (kills int) {
	const most, pause = 6, twinKeys / 7 // in keys
	for key := range r.placed {
		if kills < most && key >= (kills+1)*pause {
			r.instances[0].kill()
			kills++
			r.instances[0].restart(ctx)
		}
	}
	return kills
}

// checkTwins fails the row unless each key has one order, and the stock is exact.
func (s *deployment) checkTwins(ctx context.Context, r *twinRace) {
	var l ledger
	for _, first := range r.first {
		l.placed = append(l.placed, decode[order](first).ID)
	}
	placed := s.db.count(ctx, "SELECT count(*) FROM orders")
	must.Hold(placed == twinKeys, "%d orders with %d keys", placed, twinKeys)
	s.audit(ctx, &l)
}

// twinRace is a race of requests with the same keys.
type twinRace struct {
	instances                           [2]*service // the first may be killed
	requests, responses, replayed, lost atomic.Int64
	// placed receives the keys of orders that the first instance has placed. It is closed
	// when the race ends.
	placed chan int

	mu    sync.Mutex
	first map[int]response // by key
}

// run sends the requests: a few keys at a time, so that groups have several keys, and new
// keys come until the end.
func (r *twinRace) run(ctx context.Context) {
	for from := 0; from < twinKeys; from += twinsInUse {
		must.Parallel(twinsOfKey, func(twin int) {
			for i := range twinsInUse {
				r.place(ctx, from+(twin+i)%twinsInUse)
			}
		})
	}
}

// place sends an order with a key to a random instance, again and again until it succeeds.
// The number of units tells the orders of different keys apart.
func (r *twinRace) place(ctx context.Context, key int) {
	const pause = 20 * time.Millisecond
	store, pet, units := 0, 1+key%twinPets, 1+key
	if key/twinsInUse%2 == 1 {
		store = 1 + key%smallStores
	}
	body := fmt.Sprintf(`{"petId": %d, "quantity": %d}`, pet, units)
	for ; ; sleep(ctx, rand.N(pause)) {
		must.OK(context.Cause(ctx))
		instance := rand.N(len(r.instances))
		resp, err := r.instances[instance].store(store).do(ctx, "POST", "/store/orders", body, "Idempotency-Key", fmt.Sprint("twin-", key))
		r.requests.Add(1)
		switch {
		case err == nil && resp.status == http.StatusCreated:
			if instance == 0 && !resp.isReplay() {
				select {
				case r.placed <- key:
				default: // the instance is being restarted
				}
			}
			r.compare(key, resp)
			return
		case err == nil && resp.code() == "idempotency_in_progress":
		case instance == 0 && (err != nil || resp.status == http.StatusServiceUnavailable):
			r.lost.Add(1)
		default:
			must.OK(err)
			must.Hold(false, "key %d: %s", key, resp)
		}
	}
}

// compare fails the row unless a response belongs to its key.
func (r *twinRace) compare(key int, resp response) {
	o := decode[struct{ PetID, Quantity int }](resp)
	must.Hold(o.PetID == 1+key%twinPets && o.Quantity == 1+key, "key %d got the response to another key: %s", key, resp)
	r.responses.Add(1)
	if resp.isReplay() {
		r.replayed.Add(1)
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	first, known := r.first[key]
	if !known {
		r.first[key] = resp
		return
	}
	must.Hold(bytes.Equal(first.body, resp.body) && first.location() == resp.location(),
		"key %d got two responses: %s and %s", key, first, resp)
}

// Package feed reads the events of an account: pages of them, and requests that wait for new
// ones. A waiting request holds no database connection: one statement for all of them looks for
// new events.
package feed

import (
	"context"
	"slices"
	"sync"
	"time"

	"petstore/db"
	"petstore/internal/postgres"
)

// interval is the time between two looks for events that other processes have written. An
// event of this process wakes its waiters at once.
const interval = 100 * time.Millisecond

const (
	// lookTimeout limits one look for events.
	lookTimeout = 2 * time.Second
	// restFactor times the duration of a look is the least time to the next one. On Citus, a
	// look for 100 accounts costs 10 ms of CPU time, because it asks all shards.
	restFactor = 4
	// failedRest is the longest time to the next look after one that has failed.
	failedRest = time.Second
)

// Ends returns the numbers of the newest events of accounts.
type Ends func(ctx context.Context, accounts []int64) ([]db.FeedEndsRow, error)

// Hub wakes requests that wait for events, or for something else that has numbers. It is safe for
// concurrent use.
type Hub struct {
	db   *postgres.DB
	ends Ends

	mu       sync.Mutex
	accounts map[int64]*account // with waiting requests
	looking  bool               // whether a goroutine looks for events
	closed   bool
}

// account has the waiting requests of an account.
type account struct {
	waiting int
	newest  int64         // highest known number of an event
	changed chan struct{} // closed when there may be new events
}

// New returns a Hub that looks for events with a query of the primary.
func New(database *postgres.DB, ends Ends) *Hub {
	return &Hub{db: database, ends: ends, accounts: map[int64]*account{}}
}

// Announce wakes the requests of an account after a commit with events.
func (h *Hub) Announce(accountID int64) {
	h.mu.Lock()
	defer h.mu.Unlock()
	if a := h.accounts[accountID]; a != nil {
		a.wake()
	}
}

// Waiting returns the number of requests that wait.
func (h *Hub) Waiting() (number int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, a := range h.accounts {
		number += a.waiting
	}
	return number
}

// Close wakes all waiting requests, and makes Wait return at once from now on.
func (h *Hub) Close() {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.closed = true
	for _, a := range h.accounts {
		a.wake()
	}
}

// Wait waits until an account may have an event with a higher number than after. It reports
// false if ctx has ended or the Hub is closed. An event wakes its waiters at once if this
// process wrote it. Otherwise it wakes them within about 100 ms, or five times the duration
// of a look if the database is slow.
func (h *Hub) Wait(ctx context.Context, accountID, after int64) bool {
	h.mu.Lock()
	if h.closed {
		h.mu.Unlock()
		return false
	}
	a := h.accounts[accountID]
	if a == nil {
		a = &account{changed: make(chan struct{})}
		h.accounts[accountID] = a
	}
	if a.newest > after {
		h.mu.Unlock()
		return true
	}
	if after > a.newest { // this request has seen an event that the others may not have seen
		a.newest = after
		a.wake()
	}
	changed := a.changed
	a.waiting++
	if !h.looking {
		h.looking = true
		go h.look() //nolint:gosec // it looks for all requests
	}
	h.mu.Unlock()

	woken := true
	select {
	case <-changed:
	case <-ctx.Done():
		woken = false
	}

	h.mu.Lock()
	defer h.mu.Unlock()
	if a.waiting--; a.waiting == 0 {
		delete(h.accounts, accountID)
	}
	return woken && !h.closed
}

// wake wakes all waiting requests. The caller holds the lock of the Hub.
func (a *account) wake() {
	close(a.changed)
	a.changed = make(chan struct{})
}

// look looks for new events while requests wait.
func (h *Hub) look() {
	timer := time.NewTimer(interval)
	defer timer.Stop()
	for range timer.C {
		ids, more := h.waiting()
		if !more {
			return
		}
		ids = h.db.Reachable(ids)
		began := time.Now()
		ctx, cancel := context.WithTimeout(context.Background(), lookTimeout)
		rows, err := h.ends(h.db.ForAccounts(ctx, ids...), ids)
		cancel()
		rest := nextLook(time.Since(began))
		if err == nil {
			h.found(rows)
		} else { // the requests wait on
			rest = min(rest, failedRest)
		}
		timer.Reset(rest)
	}
}

// nextLook returns the time from the end of a look to the next one.
func nextLook(took time.Duration) time.Duration { return max(interval-took, restFactor*took) }

// waiting returns the accounts with waiting requests, sorted. If there are none, it
// reports false, and the next request starts another look.
func (h *Hub) waiting() (ids []int64, more bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for id := range h.accounts {
		ids = append(ids, id)
	}
	slices.Sort(ids)
	h.looking = len(ids) > 0
	return ids, h.looking
}

// found wakes the requests of accounts with new events.
func (h *Hub) found(rows []db.FeedEndsRow) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, row := range rows {
		if a := h.accounts[row.AccountID]; a != nil && row.LastSequence != a.newest { // a failover can lower it
			a.newest = row.LastSequence
			a.wake()
		}
	}
}

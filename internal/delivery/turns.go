package delivery

import (
	"context"
	"sync"
)

// turns is a queue of accounts that have events to dispatch. Each account has at most one
// place in it, and only one page of its events is dispatched per turn. So no account waits
// longer than a page of each other one.
type turns struct {
	woken chan struct{} // has an element if an account may be waiting

	mu      sync.Mutex
	order   []int64
	waiting map[int64]bool // the accounts in order
	running map[int64]bool // the accounts that somebody has taken
}

// newTurns returns a queue for a number of dispatchers.
func newTurns(dispatchers int) *turns {
	return &turns{woken: make(chan struct{}, dispatchers), waiting: map[int64]bool{}, running: map[int64]bool{}}
}

// add puts an account at the end of the queue, unless it has a place.
func (t *turns) add(accountID int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.waiting[accountID] {
		return
	}
	t.waiting[accountID] = true
	t.order = append(t.order, accountID)
	select {
	case t.woken <- struct{}{}:
	default:
	}
}

// take waits for an account that nobody else has taken, and takes it. It returns false when
// ctx ends. Call done for the account afterwards.
func (t *turns) take(ctx context.Context) (accountID int64, ok bool) {
	for ctx.Err() == nil {
		if accountID, ok = t.next(); ok {
			return accountID, true
		}
		select {
		case <-ctx.Done():
		case <-t.woken:
		}
	}
	return 0, false
}

// next takes the first account that nobody else has taken.
func (t *turns) next() (accountID int64, ok bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for i, id := range t.order {
		if t.running[id] {
			continue // its dispatcher looks again when it is done
		}
		t.order = append(t.order[:i], t.order[i+1:]...)
		delete(t.waiting, id)
		t.running[id] = true
		return id, true
	}
	return 0, false
}

// done ends the turn of an account.
func (t *turns) done(accountID int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.running, accountID)
}

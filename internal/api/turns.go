package api

import (
	"context"
	"slices"
	"sync"
)

// turns lets one request of an account run at a time, in the order of arrival. The
// others wait without a database connection, so that an account whose requests wait for
// the same lock leaves the connections to others. The zero value is ready to use.
type turns struct {
	mu sync.Mutex
	// waiting has the requests that wait, by account. An account without a running
	// request is absent.
	waiting map[int64][]chan struct{}
}

// take waits for the turn of a request. The caller ends the turn with give. The error is
// that of ctx.
func (t *turns) take(ctx context.Context, account int64) (give func(), err error) {
	give = func() { t.next(account) }
	t.mu.Lock()
	queue, busy := t.waiting[account]
	if !busy {
		if t.waiting == nil {
			t.waiting = map[int64][]chan struct{}{}
		}
		t.waiting[account] = nil
		t.mu.Unlock()
		return give, nil
	}
	mine := make(chan struct{})
	t.waiting[account] = append(queue, mine)
	t.mu.Unlock()
	select {
	case <-mine:
		return give, nil
	case <-ctx.Done():
		t.leave(account, mine)
		return nil, ctx.Err()
	}
}

// next gives the turn to the request that has waited longest.
func (t *turns) next(account int64) {
	t.mu.Lock()
	defer t.mu.Unlock()
	queue := t.waiting[account]
	if len(queue) == 0 {
		delete(t.waiting, account)
		return
	}
	t.waiting[account] = queue[1:]
	close(queue[0])
}

// leave removes a request that waits, or gives away the turn that it has just got.
func (t *turns) leave(account int64, mine chan struct{}) {
	t.mu.Lock()
	i := slices.Index(t.waiting[account], mine)
	if i >= 0 {
		t.waiting[account] = slices.Delete(t.waiting[account], i, i+1)
	}
	t.mu.Unlock()
	if i < 0 {
		t.next(account)
	}
}

package account

import (
	"context"
	"slices"
	"sync"
)

const (
	// OneTurn is for a request that may run beside others of its account.
	OneTurn = 1
	// AllTurns is for a request that runs alone. It is the number of turns of an account,
	// and so the maximum number of connections on which its requests wait for its locks.
	AllTurns = 4
)

// Turns limits the requests of an account that may wait for its locks in the database, in
// the order of arrival. The others wait without a database connection, so that an account
// leaves the connections to others. The zero value is ready to use.
type Turns struct {
	mu       sync.Mutex
	accounts map[int64]*accountTurns // accounts with a request that runs
}

// accountTurns has the requests of one account.
type accountTurns struct {
	taken   int
	waiting []turn
}

// turn is a request that waits.
type turn struct {
	turns int
	begin chan struct{} // closed when the request may run
}

// Take waits until a request may take this number of turns. The caller ends them with
// give. The error is that of ctx.
func (t *Turns) Take(ctx context.Context, account int64, number int) (give func(), err error) {
	mine := turn{turns: number, begin: make(chan struct{})}
	t.mu.Lock()
	if t.accounts == nil {
		t.accounts = map[int64]*accountTurns{}
	}
	own := t.accounts[account]
	if own == nil {
		own = &accountTurns{}
		t.accounts[account] = own
	}
	own.waiting = append(own.waiting, mine)
	t.begin(account)
	t.mu.Unlock()
	select {
	case <-mine.begin:
		return func() { t.end(account, mine) }, nil
	case <-ctx.Done():
		t.end(account, mine)
		return nil, ctx.Err()
	}
}

// begin gives turns to the requests that have waited longest. t.mu must be locked.
func (t *Turns) begin(account int64) {
	own := t.accounts[account]
	for len(own.waiting) > 0 && own.taken+own.waiting[0].turns <= AllTurns {
		own.taken += own.waiting[0].turns
		close(own.waiting[0].begin)
		own.waiting = own.waiting[1:]
	}
	if own.taken == 0 {
		delete(t.accounts, account)
	}
}

// end removes a request that waits, or gives back the turns that it has.
func (t *Turns) end(account int64, mine turn) {
	t.mu.Lock()
	defer t.mu.Unlock()
	own := t.accounts[account]
	if i := slices.Index(own.waiting, mine); i >= 0 {
		own.waiting = slices.Delete(own.waiting, i, i+1)
	} else {
		own.taken -= mine.turns
	}
	t.begin(account)
}

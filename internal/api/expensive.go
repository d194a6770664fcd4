package api

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"time"

	"petstore/internal/httpjson"
)

// Exact counts and the inventory summary read an index entry for every matching row.
// For 400,000 rows that takes 0.33 s of CPU time.
const (
	// expensiveCost is the number of requests that one of them counts as.
	expensiveCost = 10

	// maxExpensive is the maximum number that run at a time, one per account.
	maxExpensive = 2
	// expensiveWait is the maximum time that one waits for others of its account, and
	// then for those of other accounts.
	expensiveWait = time.Second
)

const summaryPath = "/store/inventory/summary"

// countedPaths are the lists that support Prefer: count=exact.
var countedPaths = []string{"/categories", "/pets", "/store/orders", "/store/inventory", "/messages", "/account/api-keys", "/sandboxes"}

// cost returns the number of requests that a request counts as in the limits of its key
// and its account.
func (r route) cost(request *http.Request) int {
	switch counted := r.method == http.MethodGet && slices.Contains(countedPaths, r.path); {
	case r.path == summaryPath, counted && httpjson.PrefersCount(request.Header):
		return expensiveCost
	case r.path == resetPath, r.path == sandboxesPath && r.method == http.MethodPost: // they load a sample
		return expensiveCost
	default:
		return 1
	}
}

// expensiveQueries limits the expensive queries that run at a time, so that one account
// cannot occupy the database with them.
type expensiveQueries struct {
	running chan struct{}

	mu       sync.Mutex
	accounts map[int64]*accountQueue // accounts with a query that runs or waits
}

// accountQueue has the expensive queries of one account.
type accountQueue struct {
	queries int // running or waiting
	running chan struct{}
}

func newExpensiveQueries() *expensiveQueries {
	return &expensiveQueries{running: make(chan struct{}, maxExpensive), accounts: make(map[int64]*accountQueue)}
}

// begin waits until a query of an account may run. Call end after the query. The error
// is that of the context, [errTooManyConcurrent] if others of the account kept running,
// or [errOverloaded] if those of other accounts did.
func (e *expensiveQueries) begin(ctx context.Context, account int64) (end func(), err error) {
	own := e.join(account)
	if err := acquire(ctx, own.running, errTooManyConcurrent); err != nil {
		e.leave(account)
		return nil, err
	}
	if err := acquire(ctx, e.running, errOverloaded); err != nil {
		<-own.running
		e.leave(account)
		return nil, err
	}
	return func() {
		<-e.running
		<-own.running
		e.leave(account)
	}, nil
}

// acquire takes a place in a channel used as a semaphore. It returns the error busy
// after [expensiveWait].
func acquire(ctx context.Context, running chan struct{}, busy error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, expensiveWait, busy)
	defer cancel()
	select {
	case running <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// join counts a query of an account.
func (e *expensiveQueries) join(account int64) *accountQueue {
	e.mu.Lock()
	defer e.mu.Unlock()
	own := e.accounts[account]
	if own == nil {
		own = &accountQueue{running: make(chan struct{}, 1)}
		e.accounts[account] = own
	}
	own.queries++
	return own
}

// leave removes a query, and its account after the last one.
func (e *expensiveQueries) leave(account int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if own := e.accounts[account]; own.queries > 1 {
		own.queries--
	} else {
		delete(e.accounts, account)
	}
}

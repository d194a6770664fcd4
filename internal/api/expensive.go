package api

import (
	"context"
	"net/http"
	"slices"
	"sync"
	"time"
)

// Exact counts and the inventory summary read an index entry for every row that
// matches: a third of a second of a processor for 400,000 rows.
const (
	// expensiveCost is how many requests one of them costs its key.
	expensiveCost = 10

	// maxExpensive is how many of them run at a time, of which an account has one.
	maxExpensive = 2
	// expensiveWait is how long one waits for others of its account, and then for
	// those of other accounts.
	expensiveWait = time.Second
)

const summaryPath = "/store/inventory/summary"

// countedPaths are the lists whose items a client can have counted.
var countedPaths = []string{"/categories", "/pets", "/store/orders", "/store/inventory", "/messages", "/account/api-keys"}

// cost is how many requests of its key's limit a request counts as.
func (r route) cost(request *http.Request) int {
	counted := r.method == http.MethodGet && slices.Contains(countedPaths, r.path)
	if r.path == summaryPath || (counted && prefersCount(request.Header.Values("Prefer"))) {
		return expensiveCost
	}
	return 1
}

// expensiveQueries lets few expensive queries run at a time, so that one account
// cannot keep the database busy with them.
type expensiveQueries struct {
	running chan struct{}

	mu       sync.Mutex
	accounts map[int64]*turn // of accounts that have a query that runs or waits
}

// turn is whose turn it is among the queries of one account.
type turn struct {
	queries int // that run or wait
	running chan struct{}
}

func newExpensiveQueries() *expensiveQueries {
	return &expensiveQueries{running: make(chan struct{}, maxExpensive), accounts: make(map[int64]*turn)}
}

// begin waits for the turn of a query of an account; end must be called after it. The
// error is the context's, or says whether queries of the account or of others ran all
// the time.
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

// acquire puts a value into a channel that bounds how many run at a time. It returns
// the error busy after [expensiveWait].
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
func (e *expensiveQueries) join(account int64) *turn {
	e.mu.Lock()
	defer e.mu.Unlock()
	own := e.accounts[account]
	if own == nil {
		own = &turn{running: make(chan struct{}, 1)}
		e.accounts[account] = own
	}
	own.queries++
	return own
}

// leave forgets a query, and its account with the last one.
func (e *expensiveQueries) leave(account int64) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if own := e.accounts[account]; own.queries > 1 {
		own.queries--
	} else {
		delete(e.accounts, account)
	}
}

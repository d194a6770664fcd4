package api

import (
	"context"
	"errors"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/gin-gonic/gin"
	lru "github.com/hashicorp/golang-lru/v2"

	"petstore/db"
	"petstore/internal/coalesce"
	"petstore/internal/httpjson"
	"petstore/internal/postgres"
)

const (
	// faultCacheSize is the maximum number of sandboxes whose rules are cached, of at most
	// 4 KiB each.
	faultCacheSize = 1000
	// faultCacheTime is how long rules are cached. It is below the one second within which
	// new rules take effect.
	faultCacheTime = 500 * time.Millisecond
	// faultAttempts is the maximum number of times that a request reads rules that
	// somebody else is replacing.
	faultAttempts = 3
)

// Errors that end a request without a response.
var (
	errConnectionClosed = errors.New("api: a fault closes the connection")
	errClientGone       = errors.New("api: the client disconnected during an injected delay")
)

// faults injects the faults of sandboxes. It reads and counts only for requests of
// sandboxes.
type faults struct {
	operations map[string]string // faultOperations
	names      []string          // values of operation in a rule

	mu    sync.Mutex // guards changes of cache that depend on an entry
	cache *lru.Cache[int64, *cachedFaults]
	reads *coalesce.Coalescer[int64, struct{}, []db.FaultListRow] // by account
	// counts returns for each rule the number of a request among all that it counted, from 1,
	// or 0 if the rules have changed.
	counts *coalesce.Coalescer[countedRules, struct{}, ruleNumbers]
	// shuttingDown is closed when the server shuts down, which ends all delays.
	shuttingDown chan struct{}
}

// cachedFaults are the rules of a sandbox. The time is from just before they were read. It
// is zero while they are read for the first time.
type cachedFaults struct {
	rules []db.FaultListRow
	at    time.Time
}

// countedRules are rules of a sandbox that count the same requests, by their ids.
type countedRules struct {
	account int64
	ids     [maxFaultRules]int64 // 0 after the last one
	number  int
	open    int64 // the last one, if it is not used up; or 0
}

// ruleNumbers are the numbers of a request, in the order of [countedRules].
type ruleNumbers [maxFaultRules]int64

// newFaults returns faults with rules for these operations, by method and path.
func newFaults(operations map[string]string, database *postgres.DB, queries, writes *db.Queries) *faults {
	f := &faults{operations: operations, names: []string{anyOperation}, shuttingDown: make(chan struct{})}
	for _, name := range operations {
		f.names = append(f.names, name)
	}
	slices.Sort(f.names)
	var err error
	if f.cache, err = lru.New[int64, *cachedFaults](faultCacheSize); err != nil {
		panic(err) // the size is not positive
	}
	f.reads = coalesce.New(sharedReads, func(ctx context.Context, account int64, calls []struct{}) (results [][]db.FaultListRow, err error) {
		var rules []db.FaultListRow
		err = postgres.RetryRead(ctx, func() error {
			rules, err = queries.FaultList(ctx, account)
			return err
		})
		return slices.Repeat([][]db.FaultListRow{rules}, len(calls)), err
	})
	f.counts = coalesce.New(coalesce.Limits{Parallel: 1}, func(ctx context.Context, rules countedRules, calls []struct{}) ([]ruleNumbers, error) {
		rows, err := postgres.Retry(ctx, database, writes.FaultCount, db.FaultCountParams{
			AccountID: rules.account, Ids: rules.ids[:rules.number], OpenID: rules.open, Requests: int64(len(calls)),
		})
		numbers := make([]ruleNumbers, len(calls))
		for _, row := range rows {
			rule := slices.Index(rules.ids[:], row.ID)
			for i := range numbers {
				numbers[i][rule] = row.Matched - int64(len(calls)-1-i)
			}
		}
		return numbers, err
	})
	return f
}

// forget makes this process read the rules of a sandbox again. Call it when they have
// changed.
func (f *faults) forget(account int64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.cache.Remove(account)
}

// cached returns the entry of a sandbox, and adds one without rules if there is none.
func (f *faults) cached(account int64) *cachedFaults {
	f.mu.Lock()
	defer f.mu.Unlock()
	entry, ok := f.cache.Get(account)
	if !ok {
		entry = &cachedFaults{}
		f.cache.Add(account, entry)
	}
	return entry
}

// replace replaces the entry of a sandbox, unless forget has removed it or somebody else
// has replaced it.
func (f *faults) replace(account int64, entry, with *cachedFaults) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if current, ok := f.cache.Get(account); ok && current == entry {
		f.cache.Add(account, with)
	}
}

// rules returns the rules of a sandbox, which were current at most [faultCacheTime] ago.
func (f *faults) rules(ctx context.Context, account int64) ([]db.FaultListRow, error) {
	now, entry := time.Now(), f.cached(account)
	if now.Sub(entry.at) <= faultCacheTime {
		return entry.rules, nil
	}
	rules, err := f.reads.Do(ctx, account, struct{}{})
	if err == nil {
		f.replace(account, entry, &cachedFaults{rules, now})
	}
	return rules, err
}

// choose returns the rule that applies to a request of a sandbox, or nil. It tries the
// rules for the operation in order. Each counts the request, and the first that selects
// it applies.
func (f *faults) choose(ctx context.Context, account int64, operation string) (*db.FaultListRow, error) {
	for range faultAttempts {
		rule, replaced, err := f.tryRules(ctx, account, operation)
		if err != nil || !replaced {
			return rule, err
		}
		f.forget(account)
	}
	return nil, nil //nolint:nilnil // no rule applies
}

// tryRules tries the rules for an operation in order, until one applies or turns out to
// have been replaced.
func (f *faults) tryRules(ctx context.Context, account int64, operation string) (rule *db.FaultListRow, replaced bool, err error) {
	all, err := f.rules(ctx, account)
	if err != nil {
		return nil, false, err
	}
	rest := make([]*db.FaultListRow, 0, maxFaultRules)
	for i := range all {
		if all[i].Operation == anyOperation || all[i].Operation == operation {
			rest = append(rest, &all[i])
		}
	}
	for len(rest) > 0 {
		tried := rest[:untilOpen(rest)]
		rest = rest[len(tried):]
		rules := countedRules{account: account, number: len(tried)}
		for i, rule := range tried {
			rules.ids[i] = rule.ID
			if !isUsedUp(rule) {
				rules.open = rule.ID
			}
		}
		numbers, err := f.counts.Do(ctx, rules, struct{}{})
		if err != nil {
			return nil, false, err
		}
		for i, rule := range tried {
			switch {
			case numbers[i] == 0:
				return nil, true, nil
			case selects(rule, numbers[i]):
				return rule, false, nil
			}
		}
	}
	return nil, false, nil
}

// untilOpen returns the number of rules up to the first that is not used up. One statement
// counts for all of them, because the used-up ones only count.
func untilOpen(rules []*db.FaultListRow) int {
	for i, rule := range rules {
		if !isUsedUp(rule) {
			return i + 1
		}
	}
	return len(rules)
}

// isUsedUp reports whether a rule applies to no further request.
func isUsedUp(rule *db.FaultListRow) bool { return rule.First != nil && rule.Matched >= *rule.First }

// selects reports whether a rule applies to the request with this number.
func selects(rule *db.FaultListRow, number int64) bool {
	switch {
	case rule.First != nil && number > *rule.First:
		return false
	case rule.Probability != nil && rule.Seed != nil:
		return draw(*rule.Seed, number) < *rule.Probability
	default:
		return true
	}
}

// draw returns a number in [0, 1) for a request. It depends only on the seed of the rule
// and the number of the request: SplitMix64 (https://doi.org/10.1145/2660193.2660195).
func draw(seed, number int64) float64 {
	z := uint64(seed) + uint64(number)*0x9e3779b97f4a7c15 //nolint:gosec // both are positive
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return float64((z^z>>31)>>11) / (1 << 53)
}

// injection is a fault that was injected into a request.
type injection struct {
	*db.FaultListRow

	delayed time.Duration
}

// String returns the index of the rule and its effect, for the log.
func (i *injection) String() string {
	return strconv.Itoa(int(i.Position)) + "/" + i.Effect
}

// replacesResponse reports whether the client gets an injected error or no response,
// and the server did nothing.
func (i *injection) replacesResponse() bool {
	return i.Effect == effectStatus || i.Effect == effectClose && *i.CloseWhen == closeBefore
}

// injectionOf returns the fault that was injected into a request, or nil.
func injectionOf(c *gin.Context) *injection {
	injected, _ := c.Value(injectionKey).(*injection)
	return injected
}

// injectFault injects a fault into a request of a sandbox, if a rule applies to it. The
// error is the injected one, [errConnectionClosed], one of delay, a database error, or that
// of too many delayed requests. The connection is a context that ends when the client
// disconnects.
func (s *Server) injectFault(connection context.Context, c *gin.Context, operation string) error {
	identity := caller(c)
	if !identity.IsSandbox() || operation == "" {
		return nil
	}
	rule, err := s.faults.choose(c.Request.Context(), identity.AccountID, operation)
	if rule == nil {
		return err
	}
	if rule.Effect == effectDelay {
		if err := s.limits.delays.Take(connection, identity.Payer(), 1); err != nil {
			return err
		}
		defer s.limits.delays.Give(identity.Payer(), 1)
	}
	injected := &injection{FaultListRow: rule}
	c.Set(injectionKey, injected)
	s.metrics.Injected(rule.Effect)
	if rule.Effect != effectClose {
		c.Header("Petstore-Fault", strconv.Itoa(int(rule.Position)))
	}
	switch {
	case rule.Effect == effectStatus:
		return injectedErrors[*rule.Status]
	case rule.Effect == effectDelay:
		return s.delay(connection, c, injected)
	case *rule.CloseWhen == closeBefore:
		return errConnectionClosed
	default:
		c.Writer = discarded{c.Writer}
		return nil
	}
}

// delay waits as long as a rule says, or until the server shuts down, and extends the
// deadline of the request by that time. Then it verifies the API key again. The error is
// [errClientGone], one of receiving the body or one of the verification.
func (s *Server) delay(connection context.Context, c *gin.Context, injected *injection) error {
	after := connection
	if methodHasBody(c.Request.Method) {
		// net/http notices that a client disconnects only after it has read the body.
		if _, err := s.receiveBody(c); err != nil {
			return err
		}
	}
	if isWrite(c.Request.Method) {
		after = context.WithoutCancel(connection)
	}
	began := time.Now()
	timer := time.NewTimer(time.Duration(*injected.DelayMs) * time.Millisecond)
	defer timer.Stop()
	select {
	case <-timer.C:
	case <-s.faults.shuttingDown:
	case <-connection.Done():
		return errClientGone
	}
	injected.delayed = time.Since(began)
	extendDeadline(after, c, injected.delayed)
	// Somebody may have revoked the key or deleted the sandbox meanwhile.
	_, err := s.authenticate(c)
	return err
}

// discarded is a response that the client does not get.
type discarded struct{ gin.ResponseWriter }

// WriteHeaderNow does nothing.
func (d discarded) WriteHeaderNow() {}

// Write discards a part of the body.
func (d discarded) Write(body []byte) (int, error) { return len(body), nil }

// WriteString discards a part of the body.
func (d discarded) WriteString(body string) (int, error) { return len(body), nil }

// Flush does nothing.
func (d discarded) Flush() {}

// Unwrap returns the response, for [http.ResponseController].
func (d discarded) Unwrap() http.ResponseWriter { return d.ResponseWriter }

const injectedMessage = "A fault rule of the sandbox injected this error, and the server did nothing. Retry, or change the rules with PUT /sandboxes/current/faults."

// The errors that rules inject.
var (
	errInjected429 = &httpjson.Error{Status: 429, Code: "injected_fault", Message: injectedMessage, Header: [2]string{"Retry-After", "1"}}
	errInjected500 = &httpjson.Error{Status: 500, Code: "injected_fault", Message: injectedMessage}
	errInjected502 = &httpjson.Error{Status: 502, Code: "injected_fault", Message: injectedMessage}
	errInjected503 = &httpjson.Error{Status: 503, Code: "injected_fault", Message: injectedMessage, Header: [2]string{"Retry-After", "1"}}
	errInjected504 = &httpjson.Error{Status: 504, Code: "injected_fault", Message: injectedMessage}
)

// injectedErrors has the errors by the status of a rule.
var injectedErrors = map[int32]*httpjson.Error{429: errInjected429, 500: errInjected500, 502: errInjected502, 503: errInjected503, 504: errInjected504}

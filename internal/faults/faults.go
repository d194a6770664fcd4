// Package faults has the fault rules of sandboxes: their storage, a cache of them, and the
// choice of the rule that applies to a request. It counts requests only for sandboxes with
// rules. The caller does to the request what the rule says.
package faults

import (
	"context"
	"slices"
	"sync/atomic"
	"time"

	lru "github.com/hashicorp/golang-lru/v2"

	"petstore/db"
	"petstore/internal/account"
	"petstore/internal/admission"
	"petstore/internal/auth"
	"petstore/internal/coalesce"
	"petstore/internal/postgres"
)

const (
	// cacheSize is the maximum number of sandboxes whose rules are cached, of at most
	// 4 KiB each. Most have none.
	cacheSize = 10_000
	// cachedFor is how long rules are cached. It is below the one second within which
	// new rules take effect. It does not matter to a sandbox without rules whose changes
	// are announced.
	cachedFor = 500 * time.Millisecond
	// attempts is the maximum number of times that a request reads rules that
	// somebody else is replacing.
	attempts = 3
)

// MaxRules is the maximum number of rules of a sandbox.
const MaxRules = 20

// AnyOperation in a rule means all operations that rules may name. Deliveries are none.
const AnyOperation = "*"

// DeliverWebhook in a rule means the first attempt of each delivery to a webhook of the sandbox,
// instead of an operation. Its effect is to close: before, so that the event comes late, or after,
// so that it comes again.
const DeliverWebhook = "deliverWebhook"

// The effects of a rule, and when a rule closes the connection.
const (
	EffectStatus = "status"
	EffectDelay  = "delay"
	EffectClose  = "close"

	CloseBefore = "before"
	CloseAfter  = "after"
)

// Rule is a fault rule of a sandbox.
type Rule = db.FaultListRow

// sharedReads are the limits of the coalesced reads of rules: one at a time, and up to two
// more beside a read that hangs.
var sharedReads = coalesce.Limits{Parallel: 1, Spare: 2}

// Injector chooses the rules that apply to requests of sandboxes. It is safe for concurrent
// use.
type Injector struct {
	verifier *auth.Verifier // gets the announcements of changes; nil: there are none
	cache    *lru.Cache[int64, *cached]
	reads    *coalesce.Coalescer[int64, struct{}, []Rule] // by account
	// counts returns for each rule the number of a request among all that it counted, from 1,
	// or 0 if the rules have changed.
	counts *coalesce.Coalescer[countedRules, struct{}, ruleNumbers]
}

// cached has the rules of a sandbox, or nil while they are read for the first time. [Injector.Forget]
// makes a new one, so a read that began before it stores its rules where nobody looks.
type cached = atomic.Pointer[cachedRules]

// cachedRules are the rules of a sandbox. The time and the number of the latest announced
// change are from just before they were read.
type cachedRules struct {
	rules  []Rule
	at     time.Time
	change uint64
}

// countedRules are rules of a sandbox that count the same requests, by their ids.
type countedRules struct {
	payer, account int64
	ids            [MaxRules]int64 // 0 after the last one
	number         int
}

// ruleNumbers are the numbers of a request, in the order of [countedRules].
type ruleNumbers [MaxRules]int64

// New returns an Injector. The verifier gets the announcements of [Replace], so that requests of
// a sandbox without rules need not look for rules. Without a verifier, each request reads the rules,
// because nothing tells that they have changed. A statement that counts takes one of the places,
// because a reset locks the rules.
func New(database *postgres.DB, verifier *auth.Verifier, places *admission.Pool) *Injector {
	f := &Injector{verifier: verifier}
	var err error
	if f.cache, err = lru.New[int64, *cached](cacheSize); err != nil {
		panic(err) // the size is not positive
	}
	f.reads = coalesce.New(sharedReads, func(ctx context.Context, account int64, calls []struct{}) (results [][]Rule, err error) {
		var rules []Rule
		err = postgres.RetryRead(ctx, func() error {
			rules, err = db.New(database).FaultList(ctx, account)
			return err
		})
		return slices.Repeat([][]Rule{rules}, len(calls)), err
	})
	f.counts = coalesce.New(coalesce.Limits{Parallel: 1}, func(ctx context.Context, rules countedRules, calls []struct{}) ([]ruleNumbers, error) {
		if err := places.Take(ctx, rules.payer, 1); err != nil {
			return nil, err
		}
		defer places.Give(rules.payer, 1)
		rows, err := postgres.Retry(ctx, database, db.New(database.Writing()).FaultCount, db.FaultCountParams{
			AccountID: rules.account, Ids: rules.ids[:rules.number], Requests: int64(len(calls)),
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

// Forget makes this process read the rules of a sandbox again. Call it when they have
// changed.
func (f *Injector) Forget(account int64) { f.cache.Remove(account) }

// rules returns the rules of a sandbox, which were current at most a second ago.
func (f *Injector) rules(ctx context.Context, account int64) ([]Rule, error) {
	if f.verifier == nil {
		return f.reads.Do(ctx, account, struct{}{})
	}
	entry, isCached := f.cache.Get(account)
	if !isCached {
		entry = &cached{}
		if other, isCached, _ := f.cache.PeekOrAdd(account, entry); isCached {
			entry = other
		}
	}
	read := &cachedRules{at: time.Now(), change: f.verifier.LatestChange()}
	if known := entry.Load(); known != nil && (read.at.Sub(known.at) <= cachedFor || f.hasStillNone(account, known)) {
		return known.rules, nil
	}
	var err error
	if read.rules, err = f.reads.Do(ctx, account, struct{}{}); err == nil {
		entry.Store(read)
	}
	return read.rules, err
}

// hasStillNone reports whether a sandbox had no rules and nobody has announced a change.
func (f *Injector) hasStillNone(account int64, known *cachedRules) bool {
	return len(known.rules) == 0 && f.verifier.IsUnchanged(account, known.change)
}

// Choose returns the rule that applies to a request of a sandbox, or nil. It tries the
// rules for the operation in order. Each counts the request, and the first that selects
// it applies.
func (f *Injector) Choose(ctx context.Context, payer, account int64, operation string) (*Rule, error) {
	for range attempts {
		rule, replaced, err := f.tryRules(ctx, payer, account, operation)
		if err != nil || !replaced {
			return rule, err
		}
		f.Forget(account)
	}
	return nil, nil //nolint:nilnil // no rule applies
}

// tryRules tries the rules for an operation in order, until one applies or turns out to
// have been replaced.
func (f *Injector) tryRules(ctx context.Context, payer, account int64, operation string) (rule *Rule, replaced bool, err error) {
	all, err := f.rules(ctx, account)
	if err != nil {
		return nil, false, err
	}
	rest := make([]*Rule, 0, MaxRules)
	for i := range all {
		if all[i].Operation == operation || all[i].Operation == AnyOperation && operation != DeliverWebhook {
			rest = append(rest, &all[i])
		}
	}
	for len(rest) > 0 {
		tried := rest[:untilOpen(rest)]
		rest = rest[len(tried):]
		rules := countedRules{payer: payer, account: account, number: len(tried)}
		for i, rule := range tried {
			rules.ids[i] = rule.ID
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
func untilOpen(rules []*Rule) int {
	for i, rule := range rules {
		if !isUsedUp(rule) {
			return i + 1
		}
	}
	return len(rules)
}

// isUsedUp reports whether a rule applies to no further request.
func isUsedUp(rule *Rule) bool { return rule.First != nil && rule.Matched >= *rule.First }

// selects reports whether a rule applies to the request with this number.
func selects(rule *Rule, number int64) bool {
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

// Replace replaces the rules of a sandbox in a transaction, and returns the new ones. Call
// Forget after the transaction, even after an error. The error is [account.ErrClosed] or
// comes from the database.
func Replace(ctx context.Context, queries *db.Queries, sandbox int64, rules []db.FaultCreateParams) ([]Rule, error) {
	if err := account.Enter(ctx, queries, sandbox, true); err != nil {
		return nil, err
	}
	deleted, err := queries.StoreDeleteFaults(ctx, sandbox)
	if err == nil && deleted == 0 && len(rules) == 0 { // maybe a retry of a request whose commit waits
		queries.StandbyAwait(ctx, []int64{sandbox}).Exec(func(_ int, failed error) { err = failed })
	}
	if err != nil {
		return nil, err
	}
	for _, rule := range rules {
		rule.AccountID = sandbox
		if err := queries.FaultCreate(ctx, rule); err != nil {
			return nil, err
		}
	}
	if err := queries.FaultAnnounce(ctx, sandbox); err != nil {
		return nil, err
	}
	return queries.FaultList(ctx, sandbox)
}

package exchange

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"sync"
	"time"

	"petstore/db"
	"petstore/internal/admission"
	"petstore/internal/feed"
	"petstore/internal/postgres"
	"petstore/internal/sleep"
)

const (
	// interval is the time between two writes of the buffer.
	interval = 50 * time.Millisecond
	// writeTimeout limits one write.
	writeTimeout = 2 * time.Second
	// closingTime limits the writes at the end of the process. A step of the end has a second, unless
	// the grace is shorter than the default. closingInterval is the time between two writes.
	closingTime     = 800 * time.Millisecond
	closingInterval = 10 * time.Millisecond
	// perWrite is the maximum number of exchanges of one statement, and writeBytes their size.
	perWrite   = 500
	writeBytes = 4 << 20
)

// Recorder writes exchanges to the database. It is safe for concurrent use.
type Recorder struct {
	db      *postgres.DB
	queries *db.Queries
	hub     *feed.Hub
	buffer  *admission.Pool // bytes, by payer
	report  func(written, dropped int)
	log     *slog.Logger
	closing time.Duration // [closingTime], except in tests

	mu      sync.Mutex
	waiting *batch        // the exchanges in the order of their ends
	added   chan struct{} // has an element if exchanges wait
}

// New returns a Recorder. It wakes the requests that wait in the hub, and reports the numbers of
// exchanges that it has written and dropped.
func New(database *postgres.DB, hub *feed.Hub, log *slog.Logger, report func(written, dropped int)) *Recorder {
	writing := database.Writing()
	return &Recorder{
		db: writing, queries: db.New(writing), hub: hub, log: log, report: report, closing: closingTime,
		buffer: admission.New(admission.Exchanges), waiting: newBatch(), added: make(chan struct{}, 1),
	}
}

// Add adds an exchange to the buffer. It drops the exchange if the buffer is full.
func (r *Recorder) Add(e *Exchange) {
	err := r.buffer.Take(context.Background(), e.Payer, e.size()) // the resource has no wait
	if err != nil {
		r.Drop(e.Account)
		return
	}
	r.mu.Lock()
	r.waiting.exchanges = append(r.waiting.exchanges, e)
	r.mu.Unlock()
	r.wake()
}

// Drop counts an exchange of a sandbox that is not recorded.
func (r *Recorder) Drop(account int64) {
	r.mu.Lock()
	r.waiting.drops[account]++
	r.mu.Unlock()
	r.report(0, 1)
	r.wake()
}

// wake makes Run look at the buffer.
func (r *Recorder) wake() {
	select {
	case r.added <- struct{}{}:
	default:
	}
}

// errClosed is the reason why the last exchanges are lost.
var errClosed = errors.New("the database did not accept them before the end of the process")

// Run writes the buffer until ctx ends, and then what is left of it. If another process has locked a log,
// Run tries again for up to [closingTime]. A write in progress goes on when ctx ends: nobody would know
// whether a canceled one is done.
func (r *Recorder) Run(ctx context.Context) {
	writing, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	context.AfterFunc(ctx, func() {
		sleep.For(writing, r.closing)
		stop()
	})
	for ctx.Err() == nil {
		select {
		case <-r.added:
			r.flush(writing)
			sleep.For(ctx, interval)
		case <-ctx.Done():
		}
	}
	for r.flush(writing); r.waits() && sleep.For(writing, closingInterval); {
		r.flush(writing)
	}
	if lost := r.take(); len(lost.exchanges) > 0 {
		r.drop(ctx, lost, errClosed)
	}
}

// waits reports whether something is left to write.
func (r *Recorder) waits() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return !r.waiting.isEmpty()
}

// take empties the buffer.
func (r *Recorder) take() *batch {
	r.mu.Lock()
	defer r.mu.Unlock()
	all := r.waiting
	r.waiting = newBatch()
	return all
}

// flush writes the buffer. Exchanges that it cannot write now wait for the next time.
func (r *Recorder) flush(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, writeTimeout)
	defer cancel()
	all := r.take()
	sharded, err := r.db.IsSharded(ctx)
	if err != nil {
		r.putBack(all)
		return
	}
	r.putBack(r.writeParts(ctx, all.split(sharded)))
}

// writeParts writes parts that are sorted by sandbox. It returns the exchanges that have to wait for
// the next time. The database does not accept them now, or they follow such ones of the same sandbox.
func (r *Recorder) writeParts(ctx context.Context, parts []*batch) *batch {
	rest := newBatch()
	for _, b := range parts {
		if last := len(rest.exchanges) - 1; last >= 0 { // only this sandbox may continue in the next part
			later, now := b.divide([]int64{rest.exchanges[last].Account})
			rest.add(later)
			b = now
		}
		if !b.isEmpty() {
			rest.add(r.write(ctx, b))
		}
	}
	return rest
}

// write writes a batch, and returns what has to wait for the next time. It drops an exchange if
// nobody knows whether it is written, so that none is recorded twice. It may count dropped exchanges
// twice, because the record must not hide a gap.
func (r *Recorder) write(ctx context.Context, b *batch) (rest *batch) {
	params := b.params()
	busy, err := postgres.Retry(r.db.ForAccounts(ctx, params.Accounts...), r.db, r.queries.ExchangesAppend, params)
	switch {
	case err == nil:
		later, written := b.divide(busy)
		r.finish(written, 0)
		return later
	case postgres.Unavailable(err) && (postgres.RolledBack(err) || postgres.NotSent(err) || len(b.exchanges) == 0):
		return b
	case postgres.RolledBack(err) && len(b.exchanges) > 1: // PostgreSQL does not accept one of them
		half := len(b.exchanges) / 2
		return r.writeParts(ctx, []*batch{{b.exchanges[:half], b.drops}, {b.exchanges[half:], nil}})
	default:
		r.drop(ctx, b, err)
		rest = newBatch()
		for _, e := range b.exchanges {
			rest.drops[e.Account]++ // the log counts them
		}
		return rest
	}
}

// putBack puts a batch in front of the exchanges that wait.
func (r *Recorder) putBack(b *batch) {
	if b.isEmpty() {
		return
	}
	r.mu.Lock()
	b.add(r.waiting)
	r.waiting = b
	r.mu.Unlock()
	r.wake()
}

// drop drops the exchanges of a batch.
func (r *Recorder) drop(ctx context.Context, b *batch, err error) {
	r.log.LogAttrs(ctx, slog.LevelWarn, "the record of requests lacks some", slog.Int("requests", len(b.exchanges)), slog.Any("error", err))
	r.finish(b, len(b.exchanges))
}

// finish frees the buffer after a batch of which some exchanges were dropped.
func (r *Recorder) finish(b *batch, dropped int) {
	for _, e := range b.exchanges {
		r.buffer.Give(e.Payer, e.size())
		r.hub.Announce(e.Account)
	}
	r.report(len(b.exchanges)-dropped, dropped)
}

// batch has the exchanges of one statement.
type batch struct {
	exchanges []*Exchange
	drops     map[int64]int64 // by sandbox
}

// newBatch returns an empty batch.
func newBatch() *batch { return &batch{drops: map[int64]int64{}} }

func (b *batch) isEmpty() bool { return len(b.exchanges) == 0 && len(b.drops) == 0 }

// add adds what another batch has.
func (b *batch) add(other *batch) {
	b.exchanges = append(b.exchanges, other.exchanges...)
	for account, number := range other.drops {
		b.drops[account] += number
	}
}

// split divides a batch into parts for one statement each, on a sharded cluster also by sandbox.
// The exchanges of a sandbox keep their order.
func (b *batch) split(bySandbox bool) (parts []*batch) {
	var part *batch // the last one
	bytes, sorted := int64(0), slices.Clone(b.exchanges)
	slices.SortStableFunc(sorted, func(a, b *Exchange) int { return cmp.Compare(a.Account, b.Account) })
	for _, e := range sorted {
		if part == nil || len(part.exchanges) == perWrite || bytes+e.size() > writeBytes || bySandbox && part.exchanges[0].Account != e.Account {
			part, bytes = &batch{}, 0
			parts = append(parts, part)
		}
		part.exchanges = append(part.exchanges, e)
		bytes += e.size()
	}
	if !bySandbox && len(b.drops) > 0 {
		return append(parts, &batch{drops: b.drops})
	}
	for account, number := range b.drops {
		parts = append(parts, &batch{drops: map[int64]int64{account: number}})
	}
	return parts
}

// divide returns what belongs to busy sandboxes, and the rest.
func (b *batch) divide(busy []int64) (of, others *batch) {
	of, others = newBatch(), newBatch()
	for _, e := range b.exchanges {
		part := others
		if slices.Contains(busy, e.Account) {
			part = of
		}
		part.exchanges = append(part.exchanges, e)
	}
	for account, number := range b.drops {
		part := others
		if slices.Contains(busy, account) {
			part = of
		}
		part.drops[account] = number
	}
	return of, others
}

// params returns the parameters of the statement. The exchanges are sorted by sandbox.
func (b *batch) params() db.ExchangesAppendParams {
	p := db.ExchangesAppendParams{Most: MaxExchanges, MostBytes: MaxBytes}
	last := -1 // the index of the sandbox
	for account, number := range b.drops {
		last++
		p.Accounts, p.Additions, p.AddedBytes, p.Drops = append(p.Accounts, account), append(p.Additions, 0), append(p.AddedBytes, 0), append(p.Drops, number)
	}
	for _, e := range b.exchanges {
		if last < 0 || p.Accounts[last] != e.Account {
			last++
			p.Accounts, p.Additions, p.AddedBytes, p.Drops = append(p.Accounts, e.Account), append(p.Additions, 0), append(p.AddedBytes, 0), append(p.Drops, 0)
		}
		p.Additions[last]++
		p.OfAccounts, p.Positions, p.StartBytes = append(p.OfAccounts, e.Account), append(p.Positions, p.Additions[last]), append(p.StartBytes, p.AddedBytes[last])
		p.AddedBytes[last] += e.size()
		p.Started, p.Durations = append(p.Started, e.Began), append(p.Durations, e.Took.Microseconds())
		p.RequestIds, p.ApiKeyIds = append(p.RequestIds, e.RequestID), append(p.ApiKeyIds, e.APIKeyID)
		p.Methods, p.Paths, p.Queries = append(p.Methods, e.Method), append(p.Paths, e.Path), append(p.Queries, e.Query)
		p.Operations, p.Statuses, p.Codes = append(p.Operations, e.Operation), append(p.Statuses, int32(e.Status)), append(p.Codes, e.Code) //nolint:gosec // an HTTP status
		p.IdempotencyKeys, p.Faults, p.Documents = append(p.IdempotencyKeys, e.IdempotencyKey), append(p.Faults, e.Fault), append(p.Documents, string(e.Messages))
	}
	return p
}

// expirePage is the maximum number of sandboxes that one statement finds.
const expirePage = 100

// Expire deletes the exchanges of all sandboxes that are older than [MaxAge]. It goes on after a sandbox
// that fails, and returns the first error of the database.
func Expire(ctx context.Context, database *postgres.DB) (failed error) {
	queries := db.New(database.Writing())
	for after := int64(0); ; {
		logs, err := queries.ExchangeLogsPage(postgres.ForAllAccounts(ctx), db.ExchangeLogsPageParams{AfterID: after, PageSize: expirePage})
		if err != nil {
			return cmp.Or(failed, err)
		}
		for _, row := range logs {
			if row.HasOld {
				failed = cmp.Or(failed, queries.ExchangesExpire(database.ForAccounts(ctx, row.AccountID), row.AccountID))
			}
			after = row.AccountID
		}
		if len(logs) < expirePage {
			return failed
		}
	}
}

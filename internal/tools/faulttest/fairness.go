package main

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"petstore/internal/tools/must"
)

// firstAttemptLimit is how long an event may take to its first attempt, whatever other
// accounts do.
const firstAttemptLimit = 2 * time.Second

// webhookFairness is row 39: an account gets its events within two seconds (p99) while
// other accounts have
//
//   - 10,000 deliveries due at an endpoint that accepts connections and never responds
//   - webhooks at endpoints that hang, or that accept an event after 14 s
//   - 50,000 events that are not dispatched yet, in each of two accounts
func webhookFairness(ctx context.Context, f *fixture) string {
	const due, undispatched, during = 10_000, 50_000, 6 * time.Second
	s := f.open(ctx, allowLoopback)
	mute, slowURL, healthy := s.listenSlow(ctx, time.Hour), s.listenSlow(ctx, 14*time.Second), s.listenSlow(ctx, 0)
	backlog, unanswered, slow := numbered("backlog", 2), numbered("unanswered", 3), numbered("slow", 3)
	s.db.addAccounts(ctx, mute, 1, "hanging")
	s.db.addAccounts(ctx, healthy, 1, backlog...)
	s.db.addAccounts(ctx, mute, 20, unanswered...)
	s.db.addAccounts(ctx, slowURL, 20, slow...)
	r := s.receive(ctx, nil)
	s.db.addEvents(ctx, due, "hanging")
	s.db.awaitPending(ctx, due, due, "hanging")
	var figures []string
	for _, phase := range []struct {
		what    string
		disturb func()
	}{
		{"beside an endpoint that hangs", func() {}},
		{"beside slow endpoints", func() { s.db.addEvents(ctx, 10, append(unanswered, slow...)...) }},
		{"beside events to dispatch", func() { s.db.addEvents(ctx, undispatched, backlog...) }},
	} {
		must.Explain(phase.what, func() {
			figures = append(figures, phase.what+": "+s.timeEvents(ctx, r, 20*time.Millisecond, during, phase.disturb))
		})
	}
	return strings.Join(figures, "; ")
}

// numbered returns names of accounts.
func numbered(name string, count int) (names []string) {
	for i := range count {
		names = append(names, fmt.Sprint(name, " ", i))
	}
	return names
}

// awaitPending waits until accounts have a number of pending deliveries.
func (d *database) awaitPending(ctx context.Context, least, most int, accounts ...string) {
	must.Await(ctx, 20*time.Second, func() {
		pending := d.count(ctx, `
			SELECT count(*)
			FROM webhook_deliveries
			WHERE status = 'pending' AND account_id IN (SELECT id FROM accounts WHERE name = ANY ($1::text[]))`, accounts)
		must.Hold(pending >= least && pending <= most, "%d deliveries are pending", pending)
	})
}

// timeEvents disturbs the worker, and writes an event after each interval meanwhile. It
// returns the figures of their delays at a receiver of all events of the account.
func (s *deployment) timeEvents(ctx context.Context, r *receiver, interval, during time.Duration, disturb func()) string {
	r.mu.Lock()
	r.delays = nil
	before := len(r.requests)
	r.mu.Unlock()
	w := startLoad(ctx, 1, func(int) (response, error) {
		sleep(ctx, interval)
		return s.order(ctx, 1)
	})
	defer w.finish()
	disturb()
	sleep(ctx, during)
	l := w.finish()
	l.wantOnly(http.StatusCreated)
	placed := len(l.placed)
	must.Await(ctx, 2*firstAttemptLimit, func() {
		_, events := r.received()
		must.Hold(events >= before+placed, "%d of %d events have arrived", events-before, placed)
	})
	p99, longest := r.slowest()
	figures := fmt.Sprintf("%d events, p99 %s, slowest %s", placed, round(p99), round(longest))
	must.Hold(p99 <= firstAttemptLimit, "%s, want p99 below %s", figures, firstAttemptLimit)
	must.OK(r.err)
	return figures
}

// webhookBacklog is row 42: after an outage, many deliveries are due at 100 webhooks. They
// drain at 1,000 a second or more, although an old snapshot keeps the dead entries of the
// index. Meanwhile another account gets its events within two seconds.
func webhookBacklog(ctx context.Context, f *fixture) string {
	const accounts, hooks, each, leastRate = 5, 20, 600, 1000
	const all = accounts * hooks * each
	db := f.startDatabase(ctx, "", nil)
	var arrived atomic.Int64
	url := f.listen(ctx, http.HandlerFunc(func(http.ResponseWriter, *http.Request) { arrived.Add(1) }))
	backlog := numbered("backlog", accounts)
	db.addAccounts(ctx, url, hooks, backlog...)
	db.addEvents(ctx, each, backlog...)
	db.addDeliveries(ctx, backlog...)
	release := db.holdLock(ctx, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ; SELECT count(*) FROM accounts")
	defer release()
	began := time.Now()
	s := f.openWith(ctx, db, db.url(), allowLoopback)
	r := s.receive(ctx, nil)
	others := s.timeEvents(ctx, r, 200*time.Millisecond, 0, func() {
		must.Await(ctx, all/leastRate*time.Second, func() {
			now := arrived.Load()
			must.Hold(now >= all, "%d of %d deliveries have arrived", now, all)
		})
	})
	took := time.Since(began)
	figures := fmt.Sprintf("%d deliveries in %s, %.0f a second, beside an old snapshot; another account: %s", all, round(took), all/took.Seconds(), others)
	must.Hold(all/took.Seconds() >= leastRate, "%s", figures)
	db.awaitPending(ctx, 0, 0, backlog...)
	return figures
}

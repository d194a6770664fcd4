package main

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"petstore/internal/sleep"
	"petstore/internal/tools/must"
	"petstore/internal/tools/run"
)

// fullRecord is row 51: sandboxes send 1,000 requests a second. None is dropped from the record, and
// another instance shows a request within 200 ms (median). While nobody can write the record, its
// buffer is full, but no request fails or becomes slower. While the database is away, requests get
// 503 in time. Each request is recorded or counted as dropped.
func fullRecord(ctx context.Context, f *fixture) string {
	const exchanges, sandboxes, senders, perSecond, visibleWithin = 20_000, 25, 8, 1000, 200 * time.Millisecond
	s := f.open(ctx, "PETSTORE_ACCOUNT_RATE_LIMIT=0")
	r := &recorded{deployment: s}
	keys := s.addKeys(ctx, "recorded", 1, sandboxes+1)[1:]
	for _, key := range keys[:sandboxes] {
		r.sandboxes = append(r.sandboxes, s.withKey(key))
	}
	other := s.startSecond(ctx)[1]
	var visible durations
	followed := must.Background(func() { visible = r.follow(ctx, keys[sandboxes], other) })
	began := time.Now()
	must.Parallel(senders, func(sender int) {
		for number := sender; number < exchanges; number += senders {
			sleep.For(ctx, time.Until(began.Add(time.Duration(number)*time.Second/perSecond)))
			r.send(ctx, number)
		}
	})
	rate := exchanges / time.Since(began).Seconds()
	followed()
	stored := r.awaitRecord(ctx)
	must.Hold(int64(stored) == r.sent.Load(), "only %d of %d requests are recorded", stored, r.sent.Load())
	must.Hold(visible.median() <= visibleWithin, "another instance shows a request after %s (median), p99 %s", round(visible.median()), round(visible.p99()))
	full := r.fullBuffer(ctx)
	r.databaseAway(ctx)
	return fmt.Sprintf("%d requests at %.0f/s, 0 dropped; on another instance after %s, p99 %s; %s",
		exchanges, rate, round(visible.median()), round(visible.p99()), full)
}

// recorded has sandboxes whose requests are recorded.
type recorded struct {
	*deployment

	sandboxes []*client
	sent      atomic.Int64 // requests that belong into the record
}

// follow sends requests of a sandbox one by one, and waits for each in its record at another
// instance. It returns the times between both responses.
func (r *recorded) follow(ctx context.Context, key string, other *service) (times durations) {
	const requests = 100
	here, there, target := r.withKey(key), other.withKey(key), "/sandboxes/current/requests?limit=1"
	for range requests {
		var seen time.Time
		wait := must.Background(func() {
			page := decode[[]struct{ ID string }](must.Get(there.do(ctx, "GET", target, "", "Prefer", "wait=5")).check(http.StatusOK))
			if len(page) == 1 { // else the wait has ended before
				seen, target = time.Now(), "/sandboxes/current/requests?limit=1&after="+page[0].ID
			}
		})
		must.Get(here.do(ctx, "GET", "/store/inventory/summary", "")).check(http.StatusOK)
		ended := time.Now()
		r.sent.Add(1)
		if wait(); !seen.IsZero() {
			times = append(times, seen.Sub(ended))
		}
	}
	must.Hold(len(times) > requests/2, "another instance shows only %d of %d requests", len(times), requests)
	return times
}

// send sends one of some requests.
func (r *recorded) send(ctx context.Context, number int) {
	box := r.sandboxes[number%len(r.sandboxes)]
	switch number / len(r.sandboxes) % 3 {
	case 0:
		box.want(ctx, http.StatusOK, "GET", "/pets?limit=50", "")
	case 1:
		box.want(ctx, http.StatusAccepted, "POST", "/messages", `{"message": "hello"}`)
	case 2:
		box.want(ctx, http.StatusNotFound, "GET", "/pets/1", "")
	}
	r.sent.Add(1)
}

// awaitRecord waits until each request is recorded or counted as dropped. It returns the number of
// recorded requests.
func (r *recorded) awaitRecord(ctx context.Context) (stored int) {
	must.Await(ctx, 20*time.Second, func() {
		var dropped int
		r.db.read(ctx, "SELECT coalesce(sum(last_number), 0), coalesce(sum(dropped), 0) FROM exchange_logs", nil, &stored, &dropped)
		must.Hold(int64(stored) <= r.sent.Load() && int64(stored+dropped) >= r.sent.Load(), "%d requests are recorded and %d dropped of %d", stored, dropped, r.sent.Load())
	})
	return stored
}

// readers measures requests of sandboxes with large headers, which fill the buffer. It returns the p99.
func (r *recorded) readers(ctx context.Context) time.Duration {
	const clients, each = 4, 300
	pad := strings.Repeat("x", 10<<10)
	var mu sync.Mutex
	var times durations
	must.Parallel(clients, func(number int) {
		for range each {
			resp := must.Get(r.sandboxes[number].do(ctx, "GET", "/pets?limit=50", "", "X-Pad", pad)).check(http.StatusOK)
			r.sent.Add(1)
			mu.Lock()
			times = append(times, resp.took)
			mu.Unlock()
		}
	})
	return times.p99()
}

// fullBuffer fills the buffer while nobody can write the record.
func (r *recorded) fullBuffer(ctx context.Context) string {
	before, during := r.readers(ctx), time.Duration(0)
	dropped := "SELECT coalesce(sum(dropped), 0) FROM exchange_logs"
	r.awaitRecord(ctx)
	earlier := r.db.count(ctx, dropped)
	release := r.db.holdLock(ctx, "LOCK TABLE exchange_logs, exchanges IN ACCESS EXCLUSIVE MODE")
	defer release()
	must.Explain("with a full buffer", func() { during = wantFair(ctx, before, func() time.Duration { return r.readers(ctx) }) })
	release()
	r.awaitRecord(ctx)
	lost := r.db.count(ctx, dropped) - earlier
	must.Hold(lost > 0, "the buffer was not full")
	return fmt.Sprintf("with a full buffer %d dropped, p99 %s (%s before)", lost, round(during), round(before))
}

// databaseAway sends requests while the database refuses connections, and afterwards.
func (r *recorded) databaseAway(ctx context.Context) {
	run.Exec(ctx, r.db.URL("postgres"), "ALTER DATABASE petstore ALLOW_CONNECTIONS false")
	run.Exec(ctx, r.db.URL("postgres"), "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'petstore%'")
	for range 20 {
		resp := must.Get(r.sandboxes[0].do(ctx, "GET", "/pets", ""))
		must.Hold(resp.status == http.StatusServiceUnavailable && resp.took < responseLimit, "without a database: %s after %s", resp, resp.took)
		r.sent.Add(1)
	}
	run.Exec(ctx, r.db.URL("postgres"), "ALTER DATABASE petstore ALLOW_CONNECTIONS true")
	must.Await(ctx, 5*time.Second, func() {
		resp := must.Get(r.sandboxes[0].do(ctx, "GET", "/pets", ""))
		r.sent.Add(1)
		resp.check(http.StatusOK)
	})
	r.awaitRecord(ctx)
}

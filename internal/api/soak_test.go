//go:build soak

package api_test

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"petstore/internal/api"
	"petstore/internal/auth"
	"petstore/internal/follow"
	"petstore/internal/pgtest"
	"petstore/internal/sleep"
	"petstore/internal/tools/need"
)

const (
	soakAccounts = 8 // on each worker
	soakClients  = 2 // of each account

	lostFor = 30 * time.Second
	// recovery is the time after which the accounts of the other worker have their rate again,
	// and window the time in which it is measured.
	recovery = 10 * time.Second
	window   = 10 * time.Second
	// leastRate is the least part of their rate that they have meanwhile.
	leastRate = 0.8
)

// buyer is an account under load, and the follower of its feed.
type buyer struct {
	*petstore

	account int64
	pet     int64
	isLost  bool // whether its worker fails

	done, refused atomic.Int64 // requests that succeeded, and got 503
	events        atomic.Int64 // that the follower has received

	mu     sync.Mutex
	placed []int64 // acknowledged orders
}

// TestLostWorker lets one of the two workers fail under load. Requests for its accounts then get
// 503. The accounts of the other worker keep their rate, and their live events from another
// process. When the worker goes on, no order is lost, and no feed has a gap.
func TestLostWorker(t *testing.T) { //nolint:paralleltest // it loses a worker that all tests have
	t.Run("frozen", func(t *testing.T) { testLostWorker(t, pgtest.Frozen) })
	t.Run("dead", func(t *testing.T) { testLostWorker(t, pgtest.Dead) })
}

func testLostWorker(t *testing.T, how pgtest.Outage) {
	t.Helper()
	database := pgtest.New(t)
	// A worker that crashes must have what it has acknowledged, also on a cluster for tests.
	pgtest.Exec(t, database.Pool, "SELECT run_command_on_workers(format('ALTER DATABASE %I SET synchronous_commit = on', current_database()))")
	p := startOn(t, database)
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	var running sync.WaitGroup
	t.Cleanup(func() { stop(); running.Wait() })
	running.Go(func() { p.pool.FollowNodes(ctx, slog.New(slog.NewTextHandler(t.Output(), nil))) })
	other := p.with(func(*api.Options) {}) // whose commits the first server does not announce
	buyers := buyersOnTwoWorkers(t, database, p)
	for _, b := range buyers {
		running.Go(func() { b.follow(ctx, other) })
		for client := range soakClients {
			running.Go(func() { b.buy(ctx, client) })
		}
	}
	var managed atomic.Int64
	running.Go(func() { manage(ctx, &buyer{petstore: buyers[0].petstore, account: buyers[0].account}, &managed) })
	measure := func() (healthy, lost, events float64) {
		before := total(buyers)
		sleep.For(t.Context(), window)
		after := total(buyers)
		return float64(after[0]-before[0]) / window.Seconds(), float64(after[1]-before[1]) / window.Seconds(), float64(after[2]-before[2]) / window.Seconds()
	}
	sleep.For(t.Context(), 3*time.Second) // until the connections are open
	before, _, eventsBefore := measure()
	pgtest.FailWorker(t, database, buyers[len(buyers)-1].account, how, lostFor)
	began := time.Now()
	sleep.For(t.Context(), recovery)
	during, lost, eventsDuring := measure()
	var refused int64
	for _, b := range buyers[:soakAccounts] {
		refused += b.refused.Load()
	}
	sessions := pgtest.Read[int64](t, p.db, `
		SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND backend_type = 'client backend'`)
	t.Logf("accounts of the other worker: %.0f requests and %.0f events a second before, %.0f and %.0f meanwhile (%.2f, %.2f), %d got 503; accounts of the worker: %.1f requests; %d sessions on the coordinator",
		before, eventsBefore, during, eventsDuring, during/before, eventsDuring/eventsBefore, refused, lost, sessions)
	if during < leastRate*before || eventsDuring < leastRate*eventsBefore {
		t.Errorf("the accounts of the other worker have less than %.1f of their rate", leastRate)
	}
	if lost > 0 {
		t.Error("the worker has not failed")
	}
	sleep.For(t.Context(), lostFor-time.Since(began))
	var done []int64
	for _, b := range buyers {
		done = append(done, b.done.Load())
	}
	for i, b := range buyers {
		need.Within(t, time.Minute, "each bot works", func() bool { return b.done.Load() > done[i]+10 })
	}
	t.Logf("all accounts go on %s after the worker", (time.Since(began) - lostFor).Round(100*time.Millisecond))
	managedBefore := managed.Load()
	need.Within(t, time.Minute, "the manager works", func() bool { return managed.Load() > managedBefore })
	stop()
	running.Wait()
	for _, b := range buyers {
		b.checkOrders()
	}
}

// total sums up what buyers have done: requests on the worker that does not fail, other requests,
// and events from the former.
func total(buyers []*buyer) (sum [3]int64) {
	for _, b := range buyers {
		if b.isLost {
			sum[1] += b.done.Load()
		} else {
			sum[0] += b.done.Load()
			sum[2] += b.events.Load()
		}
	}
	return sum
}

// buyersOnTwoWorkers creates accounts on both workers, the same number on each.
func buyersOnTwoWorkers(t *testing.T, database *pgtest.Database, p *petstore) (buyers []*buyer) {
	t.Helper()
	count := map[int32]int{}
	first := int32(0)
	for n := 0; len(buyers) < 2*soakAccounts; n++ {
		name := fmt.Sprint("buyer ", n)
		key := p.newKey(name, auth.Admin)
		id := pgtest.Read[int64](t, p.db, "SELECT id FROM accounts WHERE name = $1", p.named(name))
		_, port := pgtest.WorkerOf(t, database, id)
		if first == 0 {
			first = port
		}
		if count[port]++; count[port] > soakAccounts {
			continue
		}
		b := &buyer{petstore: p.as(key), account: id, isLost: port != first}
		b.pet = b.newPet("Rex", 1000)
		buyers = append(buyers, b)
	}
	slices.SortStableFunc(buyers, func(a, b *buyer) int { return cmp.Compare(strconv.FormatBool(a.isLost), strconv.FormatBool(b.isLost)) })
	return buyers
}

// manage changes what all nodes have, and sandboxes, until ctx ends. It counts what succeeds.
// Nothing of that can succeed while a worker has failed.
func manage(ctx context.Context, b *buyer, succeeded *atomic.Int64) {
	key := decode[object](b.post("/account/api-keys", object{"name": "rotated", "scope": "read"}).want(201))
	sandbox := decode[object](b.post("/sandboxes", object{"sample": "empty"}).want(201))
	for ctx.Err() == nil {
		for target, status := range map[string]int{
			fmt.Sprint("/account/api-keys/", key["id"], "/rotate"): 201,
			fmt.Sprint("/sandboxes/", sandbox["id"], "/reset"):     204,
		} {
			if resp := b.insist(ctx, "POST", target, nil); resp != nil && resp.status != status {
				b.t.Errorf("POST %s: %d %s", target, resp.status, resp.body)
				return
			}
		}
		succeeded.Add(1)
		select {
		case <-time.After(500 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

// buy restocks, orders and reads until ctx ends. It sends a request again after 503, as
// Retry-After says.
func (b *buyer) buy(ctx context.Context, client int) {
	pet := fmt.Sprint("/pets/", b.pet)
	for n := 0; ctx.Err() == nil; n++ {
		for _, request := range []struct {
			method, target string
			body           any
			header         []string
			status         int
		}{
			{"PUT", fmt.Sprint("/store/inventory/", b.pet), object{"quantity": 100}, nil, 200},
			{"POST", "/store/orders", object{"petId": b.pet}, []string{"Idempotency-Key", fmt.Sprint(client, "-", n)}, 201},
			{"GET", pet, nil, nil, 200},
			{"GET", "/pets?limit=5", nil, nil, 200},
		} {
			resp := b.insist(ctx, request.method, request.target, request.body, request.header...)
			switch {
			case resp == nil:
				return
			case resp.status != request.status:
				b.t.Errorf("account %d: %s %s: %d %s", b.account, request.method, request.target, resp.status, resp.body)
				return
			}
			b.done.Add(1)
			if request.method == "POST" {
				b.mu.Lock()
				b.placed = append(b.placed, decode[order](resp).ID)
				b.mu.Unlock()
			}
		}
	}
}

// insist sends a request until the status is not 503. It returns nil when ctx ends.
func (b *buyer) insist(ctx context.Context, method, target string, body any, header ...string) *response {
	for ctx.Err() == nil {
		resp, err := b.try(method, target, body, header...)
		switch {
		case err != nil:
			b.t.Errorf("account %d: %s %s: %v", b.account, method, target, err)
			return nil
		case resp.status == http.StatusServiceUnavailable:
			b.refused.Add(1)
		case resp.status != http.StatusConflict: // the request before is still running
			return resp
		}
		if resp.status == http.StatusServiceUnavailable && resp.header.Get("Retry-After") == "" {
			b.t.Errorf("account %d: 503 without Retry-After", b.account)
		}
		select {
		case <-time.After(time.Second):
		case <-ctx.Done():
		}
	}
	return nil
}

// follow follows the feed of the account on another server until ctx ends.
func (b *buyer) follow(ctx context.Context, server *petstore) {
	get := func(ctx context.Context, path string) (*http.Response, error) {
		request, err := http.NewRequestWithContext(ctx, http.MethodGet, server.url+path, nil)
		if err != nil {
			return nil, err
		}
		request.Header = http.Header{"Accept": {"text/event-stream"}, "Authorization": {"Bearer " + b.key}}
		response, err := http.DefaultClient.Do(request)
		if err != nil || response.StatusCode == http.StatusOK {
			return response, err
		}
		response.Body.Close()
		return nil, follow.ReadError(response, nil)
	}
	feed := &follow.Feed{Get: get, Lost: func(error, time.Duration) {}}
	err := feed.Follow(ctx, func(context.Context, follow.Event) error {
		b.events.Add(1)
		return nil
	})
	if !errors.Is(err, context.Canceled) {
		b.t.Errorf("the feed of account %d: %v", b.account, err)
	}
}

// checkOrders checks that the account has all acknowledged orders, and an event for each order.
func (b *buyer) checkOrders() {
	b.t.Helper()
	stored := pgtest.List[int64](b.t, b.db, "SELECT id FROM orders WHERE account_id = $1", b.account)
	for _, id := range b.placed {
		if !slices.Contains(stored, id) {
			b.t.Errorf("order %d of account %d is lost", id, b.account)
		}
	}
	var numbers, newest, placed int64
	need.OK(b.t, b.db.QueryRow(b.t.Context(), `
		SELECT count(*), max(sequence), count(*) FILTER (WHERE type = 'order.placed')
		FROM events
		WHERE account_id = $1`, b.account).Scan(&numbers, &newest, &placed))
	if numbers != newest || placed != int64(len(stored)) {
		b.t.Errorf("account %d has %d events up to number %d, and %d of its %d orders", b.account, numbers, newest, placed, len(stored))
	}
}

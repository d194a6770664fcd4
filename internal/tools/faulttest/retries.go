package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"petstore/internal/tools/must"
)

// concurrentRetries is row 3: requests with one Idempotency-Key take effect once, even when
// all come at the same time. Each that succeeds returns the same order.
func concurrentRetries(ctx context.Context, f *fixture) string {
	const keys, each, few = 20, 30, 4 // two keys of few requests for each small store
	s := f.open(ctx)
	stores := spread(keys*each, 2*few*smallStores)
	orders := map[string]int64{} // by store and key
	requests := 0
	var mu sync.Mutex
	must.Parallel(len(stores), func(i int) {
		pet := 1 + i/each
		if stores[i] > 0 {
			pet = 1 + i%2
		}
		result := s.api.store(stores[i]).orderUntilPlaced(ctx, pet, fmt.Sprint("key-", pet))
		mu.Lock()
		defer mu.Unlock()
		requests += result.attempts
		key := fmt.Sprint(stores[i], pet)
		if _, known := orders[key]; !known {
			orders[key] = result.id
		}
		must.Hold(result.id == orders[key], "key %s returned orders %d and %d", key, orders[key], result.id)
	})
	placed := s.db.count(ctx, "SELECT count(*) FROM orders")
	must.Hold(placed == keys+2*smallStores && len(orders) == placed, "%d orders with %d keys", placed, keys+2*smallStores)
	return fmt.Sprintf("%d orders in %d responses (%d requests); %s", placed, len(stores), requests, s.checkStores(ctx))
}

// cutResponses is row 4: a client that retries with the same key until it gets a response
// orders exactly once, even if many responses are lost.
func cutResponses(ctx context.Context, f *fixture) string {
	const each = 5
	s := f.open(ctx)
	stores := spread(16, smallStores)
	clients := len(stores)
	var cut atomic.Int64
	proxy := f.proxyTo(ctx, "tcp", s.api.addr, func(conn, upstream net.Conn) { forwardHalf(conn, upstream, &cut) })
	// Each request has its own connection, because the transport retries requests that fail
	// on a kept one.
	through := &client{base: "http://" + proxy, transport: &http.Transport{DisableKeepAlives: true}}
	results := make([]orderResult, clients*each)
	must.Parallel(clients, func(id int) {
		for n := id * each; n < (id+1)*each; n++ {
			results[n] = through.withKey(s.keys[stores[id]]).orderUntilPlaced(ctx, id+1, fmt.Sprint("order-", n))
		}
	})
	var confirmed ledger
	replayed := 0
	distinct := map[int64]bool{}
	for _, result := range results {
		confirmed.placed = append(confirmed.placed, result.id)
		distinct[result.id] = true
		if result.replayed {
			replayed++
		}
	}
	placed := s.db.count(ctx, "SELECT count(*) FROM orders")
	must.Hold(placed == len(results) && len(distinct) == len(results), "%d orders placed, %d confirmed, want %d", placed, len(distinct), len(results))
	s.audit(ctx, &confirmed)
	return fmt.Sprintf("%d confirmed = %d placed; %d responses cut, %d replayed; %s", len(distinct), placed, cut.Load(), replayed, s.checkStores(ctx))
}

// forwardHalf forwards a request and half of the responses. It cuts off and counts the other
// responses, before their first byte or later.
func forwardHalf(conn, upstream net.Conn, cut *atomic.Int64) {
	go func() { _, _ = io.Copy(upstream, conn) }() // ends when upstream is closed
	// Read the whole response first: then the service has handled the request.
	text := must.Get(io.ReadAll(upstream))
	if rand.N(2) == 0 {
		cut.Add(1)
		text = text[:rand.N(len(text))/2] // anywhere in the first half
	}
	_, _ = conn.Write(text) // the client may be gone
}

// orderResult is the final result of an order.
type orderResult struct {
	id       int64
	attempts int
	replayed bool
}

// orderUntilPlaced places an order as postUntilDone does.
func (c *client) orderUntilPlaced(ctx context.Context, pet int, key string) orderResult {
	resp, attempts := c.postUntilDone(ctx, "/store/orders", fmt.Sprintf(`{"petId": %d}`, pet), key)
	return orderResult{decode[order](resp).ID, attempts, resp.isReplay()}
}

// postUntilDone sends a POST and retries it with the same key. It retries while the
// response is lost, is a 503 or 429, or says that the same request is in progress.
func (c *client) postUntilDone(ctx context.Context, path, body, key string) (_ response, attempts int) {
	for {
		attempts++
		resp, err := c.do(ctx, "POST", path, body, "Idempotency-Key", key)
		if err == nil && resp.status != http.StatusServiceUnavailable && resp.status != http.StatusTooManyRequests && resp.code() != "idempotency_in_progress" {
			must.Hold(resp.status == http.StatusCreated || resp.status == http.StatusAccepted, "POST %s with %s: %s", path, key, resp)
			return resp, attempts
		}
		must.Hold(ctx.Err() == nil, "POST %s with %s: no result after %d attempts: %v", path, key, attempts, context.Cause(ctx))
		sleep(ctx, time.Duration(rand.N(100))*time.Millisecond)
	}
}

// isReplay reports whether the server had stored the response.
func (resp response) isReplay() bool { return resp.header.Get("Idempotent-Replayed") == "true" }

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
)

// concurrentRetries is row 3: requests with one Idempotency-Key take effect once, even when
// all come at the same time. Each that succeeds returns the same order.
func concurrentRetries(ctx context.Context, f *fixture) (string, error) {
	const keys, each = 20, 30
	s, err := f.open(ctx)
	if err != nil {
		return "", err
	}
	results := make([]orderResult, keys*each)
	var group sync.WaitGroup
	for i := range results {
		group.Go(func() { results[i] = s.orderUntilPlaced(ctx, i/each+1, fmt.Sprint("key-", i/each)) })
	}
	group.Wait()
	ids, requests := map[int]int64{}, 0
	for i, result := range results {
		requests += result.attempts
		first, seen := ids[i/each]
		switch {
		case result.err != nil:
			return "", result.err
		case seen && first != result.id:
			return "", fmt.Errorf("key %d returned orders %d and %d", i/each, first, result.id)
		}
		ids[i/each] = result.id
	}
	var placed int
	if err := s.db.read(ctx, "SELECT count(*) FROM orders", nil, &placed); err != nil {
		return "", err
	}
	if placed != keys {
		return "", fmt.Errorf("%d orders with %d keys", placed, keys)
	}
	return fmt.Sprintf("%d orders in %d responses (%d requests)", placed, len(results), requests), nil
}

// cutResponses is row 4: a client that retries with the same key until it gets a response
// orders exactly once, even if many responses are lost.
func cutResponses(ctx context.Context, f *fixture) (string, error) {
	const clients, each = 8, 10
	s, err := f.open(ctx)
	if err != nil {
		return "", err
	}
	proxy, err := startResponseCutter(ctx, f, s.api.addr)
	if err != nil {
		return "", err
	}
	// Each request has its own connection, because the transport retries requests that fail
	// on a kept one.
	through := &client{base: "http://" + proxy.addr, key: s.key, transport: &http.Transport{DisableKeepAlives: true}}
	results := make([]orderResult, clients*each)
	var group sync.WaitGroup
	for id := range clients {
		group.Go(func() {
			for i := range each {
				n := id*each + i
				results[n] = through.orderUntilPlaced(ctx, id+1, fmt.Sprint("order-", n))
			}
		})
	}
	group.Wait()
	confirmed, replayed := &ledger{}, 0
	distinct := map[int64]bool{}
	for _, result := range results {
		if result.err != nil {
			return "", result.err
		}
		confirmed.placed = append(confirmed.placed, result.id)
		distinct[result.id] = true
		if result.replayed {
			replayed++
		}
	}
	var placed int
	if err := s.db.read(ctx, "SELECT count(*) FROM orders", nil, &placed); err != nil {
		return "", err
	}
	if placed != len(results) || len(distinct) != len(results) {
		return "", fmt.Errorf("%d orders placed, %d confirmed, want %d", placed, len(distinct), len(results))
	}
	return fmt.Sprintf("%d confirmed = %d placed; %d responses cut, %d replayed", len(distinct), placed, proxy.cut.Load(), replayed), s.audit(ctx, confirmed)
}

// orderResult is the final result of an order.
type orderResult struct {
	id       int64
	attempts int
	replayed bool
	err      error
}

// orderUntilPlaced places an order as postUntilDone does.
func (c *client) orderUntilPlaced(ctx context.Context, pet int, key string) (result orderResult) {
	var resp response
	resp, result.attempts, result.err = c.postUntilDone(ctx, "/store/orders", fmt.Sprintf(`{"petId": %d}`, pet), key)
	if result.err == nil {
		var o order
		result.err = resp.decode(&o)
		result.id, result.replayed = o.ID, resp.isReplay()
	}
	return result
}

// postUntilDone sends a POST and retries it with the same key. It retries while the
// response is lost, is a 503 or 429, or says that the same request is in progress.
func (c *client) postUntilDone(ctx context.Context, path, body, key string) (resp response, attempts int, err error) {
	for ctx.Err() == nil {
		attempts++
		resp, err = c.do(ctx, "POST", path, body, "Idempotency-Key", key)
		switch {
		case err != nil || resp.status == http.StatusServiceUnavailable || resp.status == http.StatusTooManyRequests || resp.code() == "idempotency_in_progress":
			sleep(ctx, time.Duration(rand.N(100))*time.Millisecond)
			continue
		case resp.status != http.StatusCreated && resp.status != http.StatusAccepted:
			return resp, attempts, fmt.Errorf("POST %s with %s: %s", path, key, resp)
		}
		return resp, attempts, nil
	}
	return resp, attempts, fmt.Errorf("POST %s with %s: no result after %d attempts: %w", path, key, attempts, context.Cause(ctx))
}

// isReplay reports whether the server had stored the response.
func (resp response) isReplay() bool { return resp.header.Get("Idempotent-Replayed") == "true" }

// responseCutter is a proxy that forwards every request and half of the responses. It cuts
// off the other responses, before their first byte or later.
type responseCutter struct {
	addr string
	cut  atomic.Int64
}

// startResponseCutter starts a proxy to an address. It ends with the row.
func startResponseCutter(ctx context.Context, f *fixture, to string) (*responseCutter, error) {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	f.cleanup(func() { listener.Close() })
	c := &responseCutter{addr: listener.Addr().String()}
	go func() {
		for {
			conn, err := listener.Accept()
			if err != nil {
				return
			}
			go c.forward(ctx, conn, to)
		}
	}()
	return c, nil
}

// forward forwards one request and its response.
func (c *responseCutter) forward(ctx context.Context, conn net.Conn, to string) {
	defer conn.Close()
	var dialer net.Dialer
	upstream, err := dialer.DialContext(ctx, "tcp", to)
	if err != nil {
		return
	}
	defer upstream.Close()
	go func() { _, _ = io.Copy(upstream, conn) }() // ends when upstream is closed
	// Read the whole response first: then the service has handled the request.
	text, err := io.ReadAll(upstream)
	switch {
	case err != nil:
		return
	case rand.N(2) == 0:
		c.cut.Add(1)
		text = text[:rand.N(len(text))/2] // anywhere in the first half
	}
	_, _ = conn.Write(text) // the client may be gone
}

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

// Row 3. Requests under one Idempotency-Key take effect once, also when all
// come at the same moment, and each that succeeds is told of that one effect.
func twins(ctx context.Context, b *bench) (string, error) {
	const keys, each = 20, 30
	s, err := b.open(ctx)
	if err != nil {
		return "", err
	}
	results := make([]orderResult, keys*each)
	var group sync.WaitGroup
	for i := range results {
		group.Go(func() { results[i] = s.orderUntilPlaced(ctx, i/each+1, fmt.Sprint("key-", i/each)) })
	}
	group.Wait()
	ids, asked := map[int]int64{}, 0
	for i, result := range results {
		asked += result.attempts
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
		return "", fmt.Errorf("%d orders under %d keys", placed, keys)
	}
	return fmt.Sprintf("%d orders, in all %d responses (%d requests)", placed, len(results), asked), nil
}

// Row 4. A client that sends its request again under the same key, until there
// is an answer, orders exactly once, however many answers are lost.
func cutAnswers(ctx context.Context, b *bench) (string, error) {
	const clients, each = 8, 10
	s, err := b.open(ctx)
	if err != nil {
		return "", err
	}
	proxy, err := startCutter(ctx, b, s.api.addr)
	if err != nil {
		return "", err
	}
	// A connection for each request: the transport would send those again by
	// itself that fail on an old one.
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
		return "", fmt.Errorf("%d orders placed, %d confirmed, %d wanted", placed, len(distinct), len(results))
	}
	return fmt.Sprintf("%d confirmed = %d placed; %d responses cut, %d replayed", len(distinct), placed, proxy.cut.Load(), replayed), s.audit(ctx, confirmed)
}

// orderResult is what came of an order in the end.
type orderResult struct {
	id       int64
	attempts int
	replayed bool
	err      error
}

// orderUntilPlaced places an order as a client does that must know: it sends it
// again under the same key while the answer is lost, 503, or that a twin runs.
func (c *client) orderUntilPlaced(ctx context.Context, pet int, key string) (result orderResult) {
	for ctx.Err() == nil {
		result.attempts++
		a, err := c.order(ctx, pet, "Idempotency-Key", key)
		switch {
		case err != nil || a.status == http.StatusServiceUnavailable || a.status == http.StatusTooManyRequests || a.code() == "idempotency_in_progress":
			wait(ctx, time.Duration(rand.N(100))*time.Millisecond)
			continue
		case a.status != http.StatusCreated:
			result.err = fmt.Errorf("an order under %s: %s", key, a)
			return result
		}
		var o order
		result.err = a.decode(&o)
		result.id, result.replayed = o.ID, a.header.Get("Idempotent-Replayed") == "true"
		return result
	}
	result.err = fmt.Errorf("no order under %s after %d attempts: %w", key, result.attempts, context.Cause(ctx))
	return result
}

// cutter is a proxy that lets every request through and half of the answers:
// the others it cuts off, before their first byte or within.
type cutter struct {
	addr string
	cut  atomic.Int64
}

// startCutter starts a proxy to an address, until the row ends.
func startCutter(ctx context.Context, b *bench, to string) (*cutter, error) {
	var config net.ListenConfig
	listener, err := config.Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	b.atEnd(func() { listener.Close() })
	c := &cutter{addr: listener.Addr().String()}
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

// forward carries one request and its answer.
func (c *cutter) forward(ctx context.Context, conn net.Conn, to string) {
	defer conn.Close()
	var dialer net.Dialer
	upstream, err := dialer.DialContext(ctx, "tcp", to)
	if err != nil {
		return
	}
	defer upstream.Close()
	go func() { _, _ = io.Copy(upstream, conn) }() // it ends when we close
	// The whole answer first: what is cut off, the service has done.
	text, err := io.ReadAll(upstream)
	switch {
	case err != nil:
		return
	case rand.N(2) == 0:
		c.cut.Add(1)
		text = text[:rand.N(len(text))/2] // anywhere in the first half
	}
	_, _ = conn.Write(text) // the client may have gone
}

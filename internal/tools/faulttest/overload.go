package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"petstore/internal/tools/must"
)

// slowClients is row 12: clients that send slowly or never read are disconnected, and
// other clients notice nothing.
func slowClients(ctx context.Context, f *fixture) string {
	const during, closedWithin, p99Limit = 12 * time.Second, 13 * time.Second, 250 * time.Millisecond
	s := f.open(ctx)
	before := s.api.descriptors()
	began := time.Now()
	clients := s.startSlowClients(ctx)
	must.Await(ctx, 3*time.Second, func() {
		opened := s.api.descriptors()
		must.Hold(opened >= before+clients, "%d descriptors are open, so not all slow clients are connected", opened)
	})
	var times durations
	must.Explain("a normal client", func() {
		for ; time.Since(began) < during; sleep(ctx, 10*time.Millisecond) {
			times = append(times, must.Get(s.order(ctx, 1+len(times)%pets)).check(http.StatusCreated).took)
		}
	})
	must.Await(ctx, closedWithin-time.Since(began), func() {
		const own = poolSize + 4 // that the process may need itself
		now := s.api.descriptors()
		must.Hold(now <= before+own, "slow clients are still connected: %d descriptors are open, %d before", now, before)
	})
	closed := time.Since(began)
	must.Hold(times.p99() <= p99Limit, "p99 of a normal client is %s", round(times.p99()))
	return fmt.Sprintf("%d normal requests, p99 %s, no error; all %d slow clients disconnected after %s",
		len(times), round(times.p99()), clients, round(closed))
}

// startSlowClients connects clients that send an incomplete header, send an incomplete
// body or never read, and returns their number.
func (s *deployment) startSlowClients(ctx context.Context) (total int) {
	for text, clients := range map[string]int{
		"POST /store/orders HTTP/1.1\r\nHost: petstore\r\nAuthor": 500,
		"POST /store/orders HTTP/1.1\r\nHost: petstore\r\nAuthorization: Bearer " + s.key +
			"\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{\"petId\"": 100,
		// More responses than the socket buffers hold for a client that does not read. They are
		// too small for the limits of large pages and documents.
		strings.Repeat("GET /pets HTTP/1.1\r\nHost: petstore\r\nAuthorization: Bearer "+s.key+"\r\n\r\n", 3000): 50,
	} {
		for range clients {
			conn := dialSlow(ctx, s.api.addr)
			s.cleanup(func() { conn.Close() })
			go func() { _, _ = io.WriteString(conn, text) }() // may block until the connection is closed
			total++
		}
	}
	return total
}

// dialSlow connects with a small receive buffer.
func dialSlow(ctx context.Context, addr string) net.Conn {
	const buffer = 4096
	conn := dial(ctx, "tcp", addr)
	if tcp, ok := conn.(*net.TCPConn); ok {
		must.OK(tcp.SetReadBuffer(buffer))
	}
	return conn
}

// overload is row 13: sixty times the load costs at most 30 % of the throughput. Excess
// requests are rejected at once, and the service works normally afterwards.
func overload(ctx context.Context, f *fixture) string {
	const few, many, each, least = 16, 960, 3 * time.Second, 0.7
	s := f.open(ctx)
	measure := func(clients int) (*ledger, float64) {
		began := time.Now()
		w := s.startWriters(ctx, clients)
		sleep(ctx, each)
		l := w.finish()
		return l, float64(l.count(http.StatusCreated)) / time.Since(began).Seconds()
	}
	measure(few) // to warm up
	normal, goodput := measure(few)
	heavy, overloaded := measure(many)
	healthy := s.awaitWorking(ctx, time.Second)
	figures := fmt.Sprintf("%d writers %.0f/s, %d writers %.0f/s (%.0f%%): %s, slowest %s; working again after %s",
		few, goodput, many, overloaded, 100*overloaded/goodput, heavy.summary(), round(heavy.slowest), round(healthy))
	must.Hold(overloaded >= least*goodput, "%s", figures)
	normal.wantOnly(http.StatusCreated)
	heavy.wantOnly(http.StatusCreated, http.StatusServiceUnavailable, http.StatusTooManyRequests)
	heavy.wantWithin(responseLimit)
	s.audit(ctx, normal)
	s.audit(ctx, heavy)
	return figures
}

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"
)

// slowClients is row 12: clients that send slowly or never read are disconnected, and
// other clients notice nothing.
func slowClients(ctx context.Context, f *fixture) (string, error) {
	const during, closedWithin, p99Limit = 12 * time.Second, 13 * time.Second, 250 * time.Millisecond
	s, err := f.open(ctx)
	if err != nil {
		return "", err
	}
	before, err := s.api.descriptors()
	if err != nil {
		return "", err
	}
	began := time.Now()
	clients, err := s.startSlowClients(ctx)
	if err != nil {
		return "", err
	}
	if _, err := eventually(ctx, 3*time.Second, func() error {
		opened, err := s.api.descriptors()
		if err == nil && opened < before+clients {
			err = fmt.Errorf("%d descriptors are open, so not all slow clients are connected", opened)
		}
		return err
	}); err != nil {
		return "", err
	}
	var times durations
	for time.Since(began) < during {
		resp, err := s.order(ctx, 1+len(times)%pets)
		if err == nil {
			err = resp.check(http.StatusCreated)
		}
		if err != nil {
			return "", fmt.Errorf("a normal client, after %s: %w", round(time.Since(began)), err)
		}
		times = append(times, resp.took)
		sleep(ctx, 10*time.Millisecond)
	}
	if _, err := s.api.awaitDescriptors(ctx, before, closedWithin-time.Since(began)); err != nil {
		return "", fmt.Errorf("slow clients are still connected: %w", err)
	}
	closed := time.Since(began)
	if p99 := times.p99(); p99 > p99Limit {
		return "", fmt.Errorf("p99 of a normal client is %s", round(p99))
	}
	return fmt.Sprintf("%d normal requests, p99 %s, no error; all %d slow clients disconnected after %s",
		len(times), round(times.p99()), clients, round(closed)), nil
}

// startSlowClients connects clients that send an incomplete header, send an incomplete
// body or never read, and returns their number.
func (s *deployment) startSlowClients(ctx context.Context) (total int, err error) {
	for text, clients := range map[string]int{
		"POST /store/orders HTTP/1.1\r\nHost: petstore\r\nAuthor": 500,
		"POST /store/orders HTTP/1.1\r\nHost: petstore\r\nAuthorization: Bearer " + s.key +
			"\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{\"petId\"": 100,
		// More responses than the socket buffers hold for a client that does not read. They are
		// too small for the limits of large pages and documents.
		strings.Repeat("GET /pets HTTP/1.1\r\nHost: petstore\r\nAuthorization: Bearer "+s.key+"\r\n\r\n", 3000): 50,
	} {
		for range clients {
			conn, err := dialSlow(ctx, s.api.addr)
			if err != nil {
				return total, err
			}
			s.cleanup(func() { conn.Close() })
			go func() { _, _ = io.WriteString(conn, text) }() // may block until the connection is closed
			total++
		}
	}
	return total, nil
}

// dialSlow connects with a small receive buffer.
func dialSlow(ctx context.Context, addr string) (net.Conn, error) {
	const buffer = 4096
	var dialer net.Dialer
	conn, err := dialer.DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		err = tcp.SetReadBuffer(buffer)
	}
	return conn, err
}

// overload is row 13: sixty times the load costs at most 30 % of the throughput. Excess
// requests are rejected at once, and the service works normally afterwards.
func overload(ctx context.Context, f *fixture) (string, error) {
	const few, many, each, least = 16, 960, 3 * time.Second, 0.7
	s, err := f.open(ctx)
	if err != nil {
		return "", err
	}
	measure := func(clients int) (*ledger, float64) {
		began := time.Now()
		w := s.startWriters(ctx, clients)
		sleep(ctx, each)
		l := w.finish()
		return l, float64(l.statuses[http.StatusCreated]) / time.Since(began).Seconds()
	}
	measure(few) // to warm up
	normal, goodput := measure(few)
	heavy, overloaded := measure(many)
	healthy, err := s.awaitWorking(ctx, time.Second)
	if err != nil {
		return "", err
	}
	figures := fmt.Sprintf("%d writers %.0f/s, %d writers %.0f/s (%.0f%%): %s, slowest %s; working again after %s",
		few, goodput, many, overloaded, 100*overloaded/goodput, heavy.summary(), round(heavy.slowest), round(healthy))
	if overloaded < least*goodput {
		return "", errors.New(figures)
	}
	return figures, errors.Join(normal.only(http.StatusCreated), heavy.within(responseLimit), s.audit(ctx, normal), s.audit(ctx, heavy),
		heavy.only(http.StatusCreated, http.StatusServiceUnavailable, http.StatusTooManyRequests))
}

// disconnects is row 17: when a client disconnects, its statement is cancelled. No backend
// still waits, and the next request finds a free connection.
func disconnects(ctx context.Context, f *fixture) (string, error) {
	const clients, patient, limit = 300, 300 * time.Millisecond, time.Second
	s, err := f.open(ctx)
	if err != nil {
		return "", err
	}
	before, err := s.api.descriptors()
	if err != nil {
		return "", err
	}
	release, err := s.db.holdLock(ctx, databaseName, "LOCK TABLE orders IN ACCESS EXCLUSIVE MODE")
	if err != nil {
		return "", err
	}
	defer release()
	impatient, cancel := context.WithTimeout(ctx, patient)
	defer cancel()
	var l ledger
	var group sync.WaitGroup
	for number := range clients { // each with its own filter, because equal requests share a statement
		group.Go(func() { l.record(s.do(impatient, "GET", fmt.Sprintf("/store/orders?petId=%d", 1+number), "")) })
	}
	if err := s.db.awaitLockWaits(ctx, poolSize); err != nil {
		return "", err
	}
	group.Wait()
	// This table is not locked.
	resp, err := s.want(ctx, http.StatusOK, "GET", "/pets", "")
	if err == nil && resp.took > limit {
		err = fmt.Errorf("another request took %s", round(resp.took))
	}
	if err != nil {
		return "", err
	}
	gone, err := s.db.awaitNoLockWaits(ctx, limit)
	if err != nil {
		return "", err
	}
	transport.CloseIdleConnections() // of the clients that were rejected at once
	if _, err := s.api.awaitDescriptors(ctx, before, 2*limit); err != nil {
		return "", err
	}
	logged, err := s.api.loggedErrors()
	if err == nil && logged > 0 {
		err = fmt.Errorf("%d errors in the log about clients that disconnected", logged)
	}
	if err != nil {
		return "", err
	}
	left := l.statuses[noResponse]
	return fmt.Sprintf("%d disconnected, %d rejected at once; another request took %s; no backend waits after %s; no open descriptors, no errors in the log", left, l.statuses[http.StatusTooManyRequests]+l.statuses[http.StatusServiceUnavailable], round(resp.took), round(gone)), nil
}

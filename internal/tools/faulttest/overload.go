package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// Row 12. Clients that send slowly or never read cost nobody else anything, and
// are cut off.
func slowClients(ctx context.Context, b *bench) (string, error) {
	const (
		halfHeaders, halfBodies, neverRead = 500, 100, 50
		during, closedWithin, p99Limit     = 12 * time.Second, 13 * time.Second, 250 * time.Millisecond
	)
	s, err := b.open(ctx)
	if err != nil {
		return "", err
	}
	before, err := s.api.descriptors()
	if err != nil {
		return "", err
	}
	began := time.Now()
	slow := map[string]int{
		"POST /store/orders HTTP/1.1\r\nHost: petstore\r\nAuthor": halfHeaders,
		"POST /store/orders HTTP/1.1\r\nHost: petstore\r\nAuthorization: Bearer " + s.key +
			"\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{\"petId\"": halfBodies,
		// Far more answers than the kernel keeps for a client that takes none.
		strings.Repeat("GET /openapi.json HTTP/1.1\r\nHost: petstore\r\n\r\n", 200): neverRead,
	}
	for text, clients := range slow {
		for range clients {
			conn, err := dialSlow(ctx, s.api.addr)
			if err != nil {
				return "", err
			}
			b.atEnd(func() { conn.Close() })
			go func() { _, _ = io.WriteString(conn, text) }() // it may never end
		}
	}
	if _, err := eventually(ctx, 3*time.Second, func() error {
		opened, err := s.api.descriptors()
		if err == nil && opened < before+halfHeaders+halfBodies+neverRead {
			err = fmt.Errorf("%d descriptors are open: not all slow clients are there", opened)
		}
		return err
	}); err != nil {
		return "", err
	}

	var times []time.Duration
	for time.Since(began) < during {
		a, err := s.order(ctx, 1+len(times)%pets)
		if err == nil && a.status != http.StatusCreated {
			err = errors.New(a.String())
		}
		if err != nil {
			return "", fmt.Errorf("a normal client, after %s: %w", round(time.Since(began)), err)
		}
		times = append(times, a.took)
		wait(ctx, 10*time.Millisecond)
	}
	if _, err := s.api.descriptorsBack(ctx, before, closedWithin-time.Since(began)); err != nil {
		return "", fmt.Errorf("slow clients stay connected: %w", err)
	}
	closed := time.Since(began)
	slices.Sort(times)
	p99 := times[len(times)*99/100]
	if p99 > p99Limit {
		return "", fmt.Errorf("p99 of a normal client is %s", round(p99))
	}
	return fmt.Sprintf("%d normal requests, p99 %s, no error; all %d slow ones closed by %s",
		len(times), round(p99), halfHeaders+halfBodies+neverRead, round(closed)), nil
}

// dialSlow connects with a small buffer for what comes back.
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

// Row 13. Twenty times the load costs at most three tenths of the throughput:
// what is too much is refused at once, and afterwards all is well.
func overload(ctx context.Context, b *bench) (string, error) {
	const few, many, each, least = 16, 320, 3 * time.Second, 0.7
	s, err := b.open(ctx)
	if err != nil {
		return "", err
	}
	measure := func(clients int) (*ledger, float64) {
		began := time.Now()
		w := s.startWriters(ctx, clients)
		wait(ctx, each)
		l := w.finish()
		return l, float64(l.statuses[http.StatusCreated]) / time.Since(began).Seconds()
	}
	measure(few) // to warm up
	normal, goodput := measure(few)
	heavy, overloaded := measure(many)
	healthy, err := s.working(ctx, time.Second)
	if err != nil {
		return "", err
	}
	figures := fmt.Sprintf("%d writers %.0f/s, %d writers %.0f/s (%.0f%%): %s, slowest %s; healthy after %s",
		few, goodput, many, overloaded, 100*overloaded/goodput, heavy.count(), round(heavy.slowest), round(healthy))
	if overloaded < least*goodput {
		return "", errors.New(figures)
	}
	return figures, errors.Join(normal.only(http.StatusCreated), heavy.within(answerLimit), s.audit(ctx, normal), s.audit(ctx, heavy),
		heavy.only(http.StatusCreated, http.StatusServiceUnavailable, http.StatusTooManyRequests))
}

// Row 17. A client that gives up takes its statement with it: no backend goes on
// waiting, and the next request finds a free connection.
func hangUps(ctx context.Context, b *bench) (string, error) {
	const clients, patient, limit = 300, 300 * time.Millisecond, time.Second
	s, err := b.open(ctx)
	if err != nil {
		return "", err
	}
	before, err := s.api.descriptors()
	if err != nil {
		return "", err
	}
	release, err := s.db.hold(ctx, databaseName, "LOCK TABLE orders IN ACCESS EXCLUSIVE MODE")
	if err != nil {
		return "", err
	}
	defer release()
	impatient, cancel := context.WithTimeout(ctx, patient)
	defer cancel()
	var l ledger
	var group sync.WaitGroup
	for number := range clients { // each asks something else: equal questions would be one statement
		group.Go(func() { l.note(s.do(impatient, "GET", fmt.Sprintf("/store/orders?petId=%d", 1+number), "")) })
	}
	if err := s.db.untilWait(ctx, poolSize); err != nil {
		return "", err
	}
	group.Wait()
	// Not the table that is still locked.
	a, err := s.want(ctx, http.StatusOK, "GET", "/pets", "")
	if err == nil && a.took > limit {
		err = fmt.Errorf("another request took %s", round(a.took))
	}
	if err != nil {
		return "", err
	}
	gone, err := eventually(ctx, limit, func() error {
		waiting, err := s.db.waiting(ctx)
		if err == nil && waiting > 0 {
			err = fmt.Errorf("%d backends still wait for clients that have gone", waiting)
		}
		return err
	})
	if err != nil {
		return "", err
	}
	transport.CloseIdleConnections() // of those who were refused at once
	if _, err := s.api.descriptorsBack(ctx, before, 2*limit); err != nil {
		return "", err
	}
	logged, err := s.api.errorsLogged()
	if err == nil && logged > 0 {
		err = fmt.Errorf("%d errors are in the log, for clients that have gone", logged)
	}
	if err != nil {
		return "", err
	}
	left := l.statuses[noAnswer]
	return fmt.Sprintf("%d hang up, %d are refused at once; another request took %s; no backend waits after %s; no descriptor is left, no error in the log", left, l.statuses[http.StatusTooManyRequests]+l.statuses[http.StatusServiceUnavailable], round(a.took), round(gone)), nil
}

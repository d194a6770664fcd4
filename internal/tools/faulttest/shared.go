package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"syscall"
	"time"
)

// backendFrozen is row 24: one of seven backends is frozen while clients read single pets
// and equal pages, which share statements. Only the requests that share the statement on
// this backend get 503. The others continue with a p99 under one second.
func backendFrozen(ctx context.Context, f *fixture) (string, error) {
	const (
		backends        = 7
		reads, interval = 500, 10 * time.Millisecond // 5 s, less than the deadline of a request
		limit           = time.Second
		mostUnavailable = reads / 100
	)
	s, err := f.open(ctx)
	if err != nil {
		return "", err
	}
	if err := s.fillPool(ctx, backends); err != nil {
		return "", err
	}
	read := func(i int) (response, error) {
		target := "/pets?limit=10"
		if i%2 == 0 {
			target = fmt.Sprintf("/pets/%d", 1+i%pets)
		}
		return s.do(ctx, "GET", target, "")
	}
	for i := range 20 { // so that the key is cached and a backend has run both reads
		if resp, err := read(i); err != nil || resp.status != http.StatusOK {
			return "", fmt.Errorf("before the fault: %s: %w", resp, err)
		}
	}
	thaw, err := s.db.freezeLatest(ctx)
	if err != nil {
		return "", err
	}
	defer thaw()
	var l ledger
	var group sync.WaitGroup
	times := make(durations, reads)
	for i := range reads { // at a fixed rate, with or without responses
		group.Go(func() {
			resp, err := read(i)
			times[i] = resp.took
			l.record(resp, err)
		})
		sleep(ctx, interval)
	}
	group.Wait()
	p99 := times.p99()
	failed := l.statuses[http.StatusServiceUnavailable]
	figures := fmt.Sprintf("%s, p99 %s, slowest %s", l.summary(), round(p99), round(l.slowest))
	switch {
	case failed == 0:
		return "", fmt.Errorf("%s: no request used the frozen backend", figures)
	case p99 > limit || failed > mostUnavailable:
		return "", errors.New(figures)
	}
	return figures, errors.Join(l.only(http.StatusOK, http.StatusServiceUnavailable), l.within(responseLimit))
}

// freezeLatest stops the backend that the service used last, because the pool uses it next.
func (d *database) freezeLatest(ctx context.Context) (thaw func(), err error) {
	var pid int
	if err := d.read(ctx, `
		SELECT pid
		FROM pg_stat_activity
		WHERE application_name = 'petstore' AND backend_type = 'client backend' AND state = 'idle' AND query LIKE '-- name: Pet%'
		ORDER BY state_change DESC
		LIMIT 1`, nil, &pid); err != nil {
		return nil, fmt.Errorf("looking for the backend used last: %w", err)
	}
	return func() { _ = syscall.Kill(pid, syscall.SIGCONT) }, syscall.Kill(pid, syscall.SIGSTOP) // it may have ended
}

// sharedDisconnects is row 26: clients that share reads behind a table lock disconnect at
// different times. Unrelated requests get 200 meanwhile. No backend still waits 300 ms
// after the last client is gone.
func sharedDisconnects(ctx context.Context, f *fixture) (string, error) {
	const (
		clients     = 120
		first, step = 100 * time.Millisecond, 5 * time.Millisecond // the last client leaves before the lock times out
		limit       = 300 * time.Millisecond
	)
	s, err := f.open(ctx)
	if err != nil {
		return "", err
	}
	if _, err := s.stock(ctx, 1); err != nil { // so that the key is cached
		return "", err
	}
	release, err := s.db.holdLock(ctx, databaseName, "LOCK TABLE pets IN ACCESS EXCLUSIVE MODE")
	if err != nil {
		return "", err
	}
	defer release()
	targets := []string{"/pets/1", "/pets/2", "/pets?limit=1", "/pets?limit=2", "/pets?limit=3"}
	var shared, unrelated ledger
	var group sync.WaitGroup
	for i := range clients {
		group.Go(func() {
			// They disconnect in another order than they came.
			impatient, cancel := context.WithTimeout(ctx, first+time.Duration(i*77%clients)*step)
			defer cancel()
			shared.record(s.do(impatient, "GET", targets[i%len(targets)], ""))
		})
	}
	left := make(chan struct{})
	go func() {
		group.Wait()
		close(left)
	}()
	for begun := true; begun; {
		select {
		case <-left:
			begun = false
		case <-time.After(step):
		}
		unrelated.record(s.do(ctx, "GET", "/store/orders", ""))
		unrelated.record(s.do(ctx, "GET", "/categories", ""))
	}
	gone, err := s.db.awaitNoLockWaits(ctx, limit)
	if err != nil {
		return "", err
	}
	figures := fmt.Sprintf("%d clients disconnected; no backend waits after %s; unrelated requests: %s, slowest %s",
		shared.total(), round(gone), unrelated.summary(), round(unrelated.slowest))
	return figures, errors.Join(shared.only(noResponse), unrelated.only(http.StatusOK))
}

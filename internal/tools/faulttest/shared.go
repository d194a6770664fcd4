package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"sync"
	"syscall"
	"time"
)

// Row 24. One of seven backends is frozen while clients read single pets and equal
// pages, which share statements. Only the requests that share the statement on this
// backend get 503; the others go on, with a p99 under one second.
func backendFrozen(ctx context.Context, b *bench) (string, error) {
	const (
		backends        = 7
		reads, interval = 500, 10 * time.Millisecond // 5 s, less than the deadline of a request
		limit           = time.Second
		mostUnavailable = reads / 100
	)
	s, err := b.open(ctx)
	if err != nil {
		return "", err
	}
	if err := s.fillPool(ctx, backends); err != nil {
		return "", err
	}
	ask := func(i int) (answer, error) {
		target := "/pets?limit=10"
		if i%2 == 0 {
			target = fmt.Sprintf("/pets/%d", 1+i%pets)
		}
		return s.do(ctx, "GET", target, "")
	}
	for i := range 20 { // so that the key and the backend are those in use
		if a, err := ask(i); err != nil || a.status != http.StatusOK {
			return "", fmt.Errorf("before the fault: %s: %w", a, err)
		}
	}
	thaw, err := s.db.freezeLatest(ctx)
	if err != nil {
		return "", err
	}
	defer thaw()
	var l ledger
	var group sync.WaitGroup
	times := make([]time.Duration, reads)
	for i := range reads { // at fixed times, whether or not there are responses
		group.Go(func() {
			a, err := ask(i)
			times[i] = a.took
			l.note(a, err)
		})
		wait(ctx, interval)
	}
	group.Wait()
	slices.Sort(times)
	p99 := times[reads*99/100]
	failed := l.statuses[http.StatusServiceUnavailable]
	figures := fmt.Sprintf("%s, p99 %s, slowest %s", l.count(), round(p99), round(l.slowest))
	switch {
	case failed == 0:
		return "", fmt.Errorf("%s: no request met the frozen backend", figures)
	case p99 > limit || failed > mostUnavailable:
		return "", errors.New(figures)
	}
	return figures, errors.Join(l.only(http.StatusOK, http.StatusServiceUnavailable), l.within(answerLimit))
}

// freezeLatest stops the backend that the service used last, which is the one that
// its pool uses next.
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

// Row 26. Clients that share reads behind a table lock hang up at different times.
// Unrelated requests get 200 meanwhile, and 300 ms after the last client no backend
// waits any more.
func sharedHangUps(ctx context.Context, b *bench) (string, error) {
	const (
		clients     = 120
		first, step = 100 * time.Millisecond, 5 * time.Millisecond // the last one leaves before a lock times out
		limit       = 300 * time.Millisecond
	)
	s, err := b.open(ctx)
	if err != nil {
		return "", err
	}
	if _, err := s.stock(ctx, 1); err != nil { // the key is known from now on
		return "", err
	}
	release, err := s.db.hold(ctx, databaseName, "LOCK TABLE pets IN ACCESS EXCLUSIVE MODE")
	if err != nil {
		return "", err
	}
	defer release()
	targets := []string{"/pets/1", "/pets/2", "/pets?limit=1", "/pets?limit=2", "/pets?limit=3"}
	var shared, unrelated ledger
	var group sync.WaitGroup
	for i := range clients {
		group.Go(func() {
			// Not in the order in which they came.
			impatient, cancel := context.WithTimeout(ctx, first+time.Duration(i*77%clients)*step)
			defer cancel()
			shared.note(s.do(impatient, "GET", targets[i%len(targets)], ""))
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
		unrelated.note(s.do(ctx, "GET", "/store/orders", ""))
		unrelated.note(s.do(ctx, "GET", "/categories", ""))
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
	figures := fmt.Sprintf("%d clients hung up; no backend waits after %s; unrelated requests: %s, slowest %s",
		shared.total(), round(gone), unrelated.count(), round(unrelated.slowest))
	return figures, errors.Join(shared.only(noAnswer), unrelated.only(http.StatusOK))
}

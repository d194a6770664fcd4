package main

import (
	"context"
	"fmt"
	"net/http"
	"sync"
	"syscall"
	"time"

	"petstore/internal/tools/must"
)

// backendFrozen is row 24: one of seven backends is frozen while clients read single pets
// and equal pages, which share statements. Only the requests that share the statement on
// this backend get 503. The others continue with a p99 under one second.
func backendFrozen(ctx context.Context, f *fixture) string {
	const (
		backends        = 7
		reads, interval = 500, 10 * time.Millisecond // 5 s, less than the deadline of a request
		limit           = time.Second
		mostUnavailable = reads / 100
	)
	s := f.open(ctx)
	s.fillPool(ctx, backends)
	read := func(i int) (response, error) {
		if i%2 == 0 {
			return s.getPet(ctx, 1+i%pets)
		}
		return s.do(ctx, "GET", "/pets?limit=10", "")
	}
	for i := range 20 { // so that the key is cached and a backend has run both reads
		must.Get(read(i)).check(http.StatusOK)
	}
	// The pool uses the backend next that it has used last.
	pid := s.db.count(ctx, `
		SELECT pid
		FROM pg_stat_activity
		WHERE application_name = 'petstore' AND backend_type = 'client backend' AND state = 'idle' AND query LIKE '-- name: Pet%'
		ORDER BY state_change DESC
		LIMIT 1`)
	must.OK(syscall.Kill(pid, syscall.SIGSTOP))
	defer func() { _ = syscall.Kill(pid, syscall.SIGCONT) }() // it may have ended
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
	failed := l.count(http.StatusServiceUnavailable)
	figures := fmt.Sprintf("%s, p99 %s, slowest %s", l.summary(), round(times.p99()), round(l.slowest))
	must.Hold(failed > 0, "%s: no request used the frozen backend", figures)
	must.Hold(times.p99() <= limit && failed <= mostUnavailable, "%s", figures)
	l.wantOnly(http.StatusOK, http.StatusServiceUnavailable)
	l.wantWithin(responseLimit)
	return figures
}

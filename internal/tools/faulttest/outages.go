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

// responseLimit is the maximum response time while the database is unavailable.
const responseLimit = 8 * time.Second

// databaseKilled is row 5: when PostgreSQL is killed and restarted, no acknowledged order
// is lost. Requests meanwhile get 503, and the service recovers by itself.
func databaseKilled(ctx context.Context, f *fixture) (string, error) {
	s, err := f.open(ctx)
	if err != nil {
		return "", err
	}
	w := s.startWriters(ctx, 16)
	sleep(ctx, time.Second)
	if err := s.db.signal(syscall.SIGKILL); err != nil {
		return "", err
	}
	sleep(ctx, 1500*time.Millisecond)
	if err := s.db.start(ctx); err != nil {
		return "", err
	}
	back, err := s.awaitWorking(ctx, 3*time.Second)
	if err != nil {
		return "", err
	}
	sleep(ctx, time.Second)
	return s.checkWriters(ctx, w.finish(), fmt.Sprintf("working again after %s", round(back)))
}

// checkWriters returns an error unless all responses to writers are 201 or 503 and in time,
// and no order is lost.
func (s *deployment) checkWriters(ctx context.Context, l *ledger, more string) (string, error) {
	err := errors.Join(l.only(http.StatusCreated, http.StatusServiceUnavailable), l.within(responseLimit), s.audit(ctx, l))
	return fmt.Sprintf("%s, slowest %s, 0 of %d lost; %s", l.summary(), round(l.slowest), len(l.placed), more), err
}

// backendsTerminated is row 6: a lost connection costs at most the write in progress on it.
// Reads are repeated. If the database refuses connections, requests get 503.
func backendsTerminated(ctx context.Context, f *fixture) (string, error) {
	const terminate = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'petstore%'"
	s, err := f.open(ctx)
	if err != nil {
		return "", err
	}
	w, r := s.startWriters(ctx, 16), s.startReaders(ctx, 4)
	for range 20 {
		if err := s.db.exec(ctx, terminate); err != nil {
			return "", err
		}
		sleep(ctx, 200*time.Millisecond)
	}
	l, reads := w.finish(), r.finish()
	succeeded := float64(l.statuses[http.StatusCreated]) / float64(l.total())
	if succeeded < 0.9 {
		return "", fmt.Errorf("%s: only %.1f%% succeed", l.summary(), 100*succeeded)
	}
	if failed := reads.total() - reads.statuses[http.StatusOK]; 1000*failed > reads.total() {
		return "", fmt.Errorf("reads: %s, want at most 0.1%% errors, because the server repeats reads", reads.summary())
	}
	if err := s.idleTerminated(ctx, terminate); err != nil {
		return "", err
	}

	// Sent from another database, because this one refuses connections.
	if err := s.db.execIn(ctx, "postgres", "ALTER DATABASE petstore ALLOW_CONNECTIONS false"); err != nil {
		return "", err
	}
	if err := s.db.execIn(ctx, "postgres", terminate); err != nil {
		return "", err
	}
	w = s.startWriters(ctx, 16)
	sleep(ctx, time.Second)
	refused := w.finish()
	if err := errors.Join(refused.only(http.StatusServiceUnavailable), refused.within(responseLimit)); err != nil {
		return "", fmt.Errorf("when connections are refused: %w", err)
	}
	if err := s.db.execIn(ctx, "postgres", "ALTER DATABASE petstore ALLOW_CONNECTIONS true"); err != nil {
		return "", err
	}
	if _, err := s.awaitWorking(ctx, 3*time.Second); err != nil {
		return "", err
	}
	return s.checkWriters(ctx, l, fmt.Sprintf("%.1f%% succeed; reads: %s; refused: %s", 100*succeeded, reads.summary(), refused.summary()))
}

// idleTerminated terminates all backends of an idle pool. The next orders must succeed on
// new connections.
func (s *deployment) idleTerminated(ctx context.Context, terminate string) error {
	requests := func(status int, request func(pet int) (response, error)) error {
		var l ledger
		var group sync.WaitGroup
		for number := range poolSize {
			group.Go(func() { l.record(request(1 + number)) })
		}
		group.Wait()
		return l.only(status)
	}
	// Lists with different filters that wait for a lock take one connection each.
	release, err := s.db.holdLock(ctx, databaseName, "LOCK TABLE orders IN ACCESS EXCLUSIVE MODE")
	if err != nil {
		return err
	}
	defer release()
	filled := make(chan error, 1)
	go func() {
		filled <- requests(http.StatusOK, func(pet int) (response, error) {
			return s.do(ctx, "GET", fmt.Sprintf("/store/orders?petId=%d", pet), "")
		})
	}()
	err = s.db.awaitLockWaits(ctx, poolSize)
	release()
	if err := errors.Join(err, <-filled); err != nil {
		return err
	}
	if err := s.db.exec(ctx, terminate); err != nil {
		return err
	}
	if _, err := eventually(ctx, time.Second, func() error {
		var left int
		err := s.db.read(ctx, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'petstore'", nil, &left)
		if err == nil && left > 0 {
			err = fmt.Errorf("%d backends still run", left)
		}
		return err
	}); err != nil {
		return err
	}
	if err := requests(http.StatusCreated, func(pet int) (response, error) { return s.order(ctx, pet) }); err != nil {
		return fmt.Errorf("after idle connections were terminated: %w", err)
	}
	return nil
}

// databaseFrozen is row 7: if the database keeps its connections open but does not respond,
// requests get 503 by their deadline.
func databaseFrozen(ctx context.Context, f *fixture) (string, error) {
	s, err := f.open(ctx)
	if err != nil {
		return "", err
	}
	w := s.startWriters(ctx, 16) // so that every connection of the pool is in use
	sleep(ctx, 300*time.Millisecond)
	l := w.finish()
	if err := s.db.signal(syscall.SIGSTOP); err != nil {
		return "", err
	}
	defer func() { _ = s.db.signal(syscall.SIGCONT) }() // it may run already
	var frozen ledger
	var group sync.WaitGroup
	for i := range 48 {
		group.Go(func() {
			if i%2 == 0 {
				frozen.record(s.order(ctx, 1+i))
			} else {
				frozen.record(s.do(ctx, "GET", fmt.Sprintf("/pets/%d", 1+i), ""))
			}
		})
	}
	group.Wait()
	if err := errors.Join(frozen.only(http.StatusServiceUnavailable), frozen.within(responseLimit)); err != nil {
		return "", err
	}
	if err := s.db.signal(syscall.SIGCONT); err != nil {
		return "", err
	}
	back, err := s.awaitWorking(ctx, 3*time.Second)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s, slowest %s; working again after %s", frozen.summary(), round(frozen.slowest), round(back)), s.audit(ctx, l)
}

// tablesLocked is row 8: while every connection waits for a lock, requests get 503 with
// Retry-After in time. Requests that fail before they need the database get their
// response at once. So the server takes no connection before route, key and body are
// valid.
func tablesLocked(ctx context.Context, f *fixture) (string, error) {
	const requests, limit = 60, 6 * time.Second
	s, err := f.open(ctx)
	if err != nil {
		return "", err
	}
	if _, err := s.stock(ctx, 1); err != nil { // so that the key is cached
		return "", err
	}
	release, err := s.db.holdLock(ctx, databaseName, "LOCK TABLE pets, inventory, orders IN ACCESS EXCLUSIVE MODE")
	if err != nil {
		return "", err
	}
	defer release()
	var stuck ledger
	var group sync.WaitGroup
	for i := range requests {
		group.Go(func() {
			var resp response
			var err error
			if i%2 == 0 {
				resp, err = s.order(ctx, 1+i)
			} else {
				// Each list runs its own statement; reads of single pets share one.
				resp, err = s.do(ctx, "GET", fmt.Sprintf("/store/orders?petId=%d", 1+i), "")
			}
			if err == nil && resp.status == http.StatusServiceUnavailable && resp.header.Get("Retry-After") == "" {
				err = errors.New("a 503 without Retry-After")
			}
			stuck.record(resp, err)
		})
	}
	// Wait until the pool is exhausted.
	if err := s.db.awaitLockWaits(ctx, poolSize); err != nil {
		return "", err
	}
	slowest, err := s.rejectedAtOnce(ctx)
	group.Wait()
	if err := errors.Join(err, stuck.only(http.StatusOK, http.StatusServiceUnavailable), stuck.within(limit)); err != nil {
		return "", err
	}
	release()
	back, err := s.awaitWorking(ctx, 3*time.Second)
	return fmt.Sprintf("%s, slowest %s; 404, 405, 401, 400 within %s; working again after %s",
		stuck.summary(), round(stuck.slowest), round(slowest), round(back)), err
}

// rejectedAtOnce sends requests that need no database, and returns the slowest response
// time. The error lists those with a wrong status or a slow response.
func (s *deployment) rejectedAtOnce(ctx context.Context) (slowest time.Duration, failures error) {
	const limit = 200 * time.Millisecond
	for _, request := range []struct {
		status int
		method string
		target string
		body   string
		key    string
	}{
		{404, "GET", "/nowhere", "", s.key},
		{405, "DELETE", "/pets", "", s.key},
		{401, "GET", "/pets", "", ""},
		{401, "POST", "/store/orders", `{"petId": 1}`, "petstore_nonsense"},
		{400, "POST", "/store/orders", `{"petId": `, s.key},
		{400, "POST", "/pets", `{"name": ""}`, s.key},
		{400, "GET", "/pets?limit=none", "", s.key},
		{400, "GET", "/pets/none", "", s.key},
		{200, "GET", "/livez", "", ""},
	} {
		resp, err := s.withKey(request.key).want(ctx, request.status, request.method, request.target, request.body)
		slowest = max(slowest, resp.took)
		if err == nil && resp.took > limit {
			err = fmt.Errorf("%s %s took %s: %s", request.method, request.target, round(resp.took), resp)
		}
		failures = errors.Join(failures, err)
	}
	return slowest, failures
}

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

// answerLimit is how long an answer may take when the database is away.
const answerLimit = 8 * time.Second

// Row 5. When PostgreSQL is killed and started again, no acknowledged order is
// lost, whatever cannot be done meanwhile is 503, and the service goes on by itself.
func databaseKilled(ctx context.Context, b *bench) (string, error) {
	s, err := b.open(ctx)
	if err != nil {
		return "", err
	}
	w := s.startWriters(ctx, 16)
	wait(ctx, time.Second)
	if err := s.db.signal(syscall.SIGKILL); err != nil {
		return "", err
	}
	wait(ctx, 1500*time.Millisecond)
	if err := s.db.start(ctx); err != nil {
		return "", err
	}
	back, err := s.working(ctx, 3*time.Second)
	if err != nil {
		return "", err
	}
	wait(ctx, time.Second)
	return s.settle(ctx, w.finish(), fmt.Sprintf("working again after %s", round(back)))
}

// settle judges what writers went through: only 201 and 503, each in time, and
// nothing lost.
func (s *shop) settle(ctx context.Context, l *ledger, more string) (string, error) {
	err := errors.Join(l.only(http.StatusCreated, http.StatusServiceUnavailable), l.within(answerLimit), s.audit(ctx, l))
	return fmt.Sprintf("%s, slowest %s, 0 of %d lost; %s", l.count(), round(l.slowest), len(l.placed), more), err
}

// Row 6. Lost connections cost at most the writes that were under way on them,
// and no reads, which are done again; a database that refuses connections is 503.
func backendsTerminated(ctx context.Context, b *bench) (string, error) {
	const terminate = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'petstore%'"
	s, err := b.open(ctx)
	if err != nil {
		return "", err
	}
	w, r := s.startWriters(ctx, 16), s.startReaders(ctx, 4)
	for range 20 {
		if err := s.db.exec(ctx, terminate); err != nil {
			return "", err
		}
		wait(ctx, 200*time.Millisecond)
	}
	l, reads := w.finish(), r.finish()
	succeeded := float64(l.statuses[http.StatusCreated]) / float64(l.total())
	if succeeded < 0.9 {
		return "", fmt.Errorf("%s: only %.1f%% succeed", l.count(), 100*succeeded)
	}
	if failed := reads.total() - reads.statuses[http.StatusOK]; 1000*failed > reads.total() {
		return "", fmt.Errorf("reads: %s, though each can be done again", reads.count())
	}
	if err := s.idleTerminated(ctx, terminate); err != nil {
		return "", err
	}

	// From another database, since this one lets nobody in.
	if err := s.db.execIn(ctx, "postgres", "ALTER DATABASE petstore ALLOW_CONNECTIONS false"); err != nil {
		return "", err
	}
	if err := s.db.execIn(ctx, "postgres", terminate); err != nil {
		return "", err
	}
	w = s.startWriters(ctx, 16)
	wait(ctx, time.Second)
	refused := w.finish()
	if err := errors.Join(refused.only(http.StatusServiceUnavailable), refused.within(answerLimit)); err != nil {
		return "", fmt.Errorf("when connections are refused: %w", err)
	}
	if err := s.db.execIn(ctx, "postgres", "ALTER DATABASE petstore ALLOW_CONNECTIONS true"); err != nil {
		return "", err
	}
	if _, err := s.working(ctx, 3*time.Second); err != nil {
		return "", err
	}
	return s.settle(ctx, l, fmt.Sprintf("%.1f%% succeed; reads: %s; refused: %s", 100*succeeded, reads.count(), refused.count()))
}

// idleTerminated terminates the backends of a whole pool on which nothing is under
// way, so that nothing may be lost: the next orders find other connections.
func (s *shop) idleTerminated(ctx context.Context, terminate string) error {
	orders := func() error {
		var l ledger
		var group sync.WaitGroup
		for pet := range writers {
			group.Go(func() { l.note(s.order(ctx, 1+pet)) })
		}
		group.Wait()
		return l.only(http.StatusCreated)
	}
	// Orders that wait for a lock at the same time take a connection each.
	release, err := s.db.hold(ctx, databaseName, "LOCK TABLE inventory IN ACCESS EXCLUSIVE MODE")
	if err != nil {
		return err
	}
	defer release()
	filled := make(chan error, 1)
	go func() { filled <- orders() }()
	err = s.db.untilWait(ctx, writers)
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
			err = fmt.Errorf("%d backends are left", left)
		}
		return err
	}); err != nil {
		return err
	}
	if err := orders(); err != nil {
		return fmt.Errorf("after idle connections were terminated: %w", err)
	}
	return nil
}

// Row 7. A database that holds its connections open and does not answer is 503
// within the request's own deadline: nothing else ends that wait.
func databaseFrozen(ctx context.Context, b *bench) (string, error) {
	s, err := b.open(ctx)
	if err != nil {
		return "", err
	}
	w := s.startWriters(ctx, 16) // so that every connection of the pool is in use
	wait(ctx, 300*time.Millisecond)
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
				frozen.note(s.order(ctx, 1+i))
			} else {
				frozen.note(s.do(ctx, "GET", fmt.Sprintf("/pets/%d", 1+i), ""))
			}
		})
	}
	group.Wait()
	if err := errors.Join(frozen.only(http.StatusServiceUnavailable), frozen.within(answerLimit)); err != nil {
		return "", err
	}
	if err := s.db.signal(syscall.SIGCONT); err != nil {
		return "", err
	}
	back, err := s.working(ctx, 3*time.Second)
	if err != nil {
		return "", err
	}
	return fmt.Sprintf("%s, slowest %s; working again after %s", frozen.count(), round(frozen.slowest), round(back)), s.audit(ctx, l)
}

// Row 8. While every connection waits for a lock, requests are refused in time
// and say when to come back, and what needs no database is answered at once: no
// connection is taken before route, key and body are right.
func tablesLocked(ctx context.Context, b *bench) (string, error) {
	const requests, limit, atOnce = 60, 6 * time.Second, 200 * time.Millisecond
	s, err := b.open(ctx)
	if err != nil {
		return "", err
	}
	if _, err := s.stock(ctx, 1); err != nil { // the key is known from now on
		return "", err
	}
	release, err := s.db.hold(ctx, databaseName, "LOCK TABLE pets, inventory, orders IN ACCESS EXCLUSIVE MODE")
	if err != nil {
		return "", err
	}
	defer release()
	var stuck ledger
	var group sync.WaitGroup
	var hasty error
	for i := range requests {
		group.Go(func() {
			var a answer
			var err error
			if i%2 == 0 {
				a, err = s.order(ctx, 1+i)
			} else {
				// Each a statement of its own, which reads of single pets are not.
				a, err = s.do(ctx, "GET", fmt.Sprintf("/store/orders?petId=%d", 1+i), "")
			}
			if err == nil && a.status == http.StatusServiceUnavailable && a.header.Get("Retry-After") == "" {
				err = errors.New("a 503 without Retry-After")
			}
			stuck.note(a, err)
		})
	}
	// Until they all wait, and then while they do.
	if err := s.db.untilWait(ctx, poolSize); err != nil {
		return "", err
	}
	var slowest time.Duration
	for _, ask := range []struct {
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
		a, err := s.as(ask.key).want(ctx, ask.status, ask.method, ask.target, ask.body)
		slowest = max(slowest, a.took)
		if err == nil && a.took > atOnce {
			err = fmt.Errorf("%s %s took %s: %s", ask.method, ask.target, round(a.took), a)
		}
		hasty = errors.Join(hasty, err)
	}
	group.Wait()
	if err := errors.Join(hasty, stuck.only(http.StatusOK, http.StatusServiceUnavailable), stuck.within(limit)); err != nil {
		return "", err
	}
	release()
	back, err := s.working(ctx, 3*time.Second)
	return fmt.Sprintf("%s, slowest %s; 404, 405, 401, 400 within %s; working again after %s",
		stuck.count(), round(stuck.slowest), round(slowest), round(back)), err
}

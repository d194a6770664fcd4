package main

import (
	"context"
	"fmt"
	"net/http"
	"syscall"
	"time"

	"petstore/internal/tools/must"
)

// responseLimit is the maximum response time while the database is unavailable.
const responseLimit = 8 * time.Second

// databaseKilled is row 5: when PostgreSQL is killed and restarted, no account loses an
// acknowledged order. Requests meanwhile get 503, and the service recovers by itself.
func databaseKilled(ctx context.Context, f *fixture) string {
	s := f.open(ctx)
	w := s.startWritersOf(ctx, spread(16, smallStores))
	sleep(ctx, time.Second)
	s.db.signal(syscall.SIGKILL)
	sleep(ctx, 1500*time.Millisecond)
	s.db.start(ctx)
	back := s.awaitWorking(ctx, 3*time.Second)
	sleep(ctx, time.Second)
	l := w.finish()
	s.checkWriters(ctx, l)
	return fmt.Sprintf("%s, slowest %s, 0 of %d lost; working again after %s; %s", l.summary(), round(l.slowest), len(l.placed), round(back), s.checkStores(ctx))
}

// checkWriters fails the row unless all responses to writers are 201 or 503 and in time,
// and no order is lost.
func (s *deployment) checkWriters(ctx context.Context, l *ledger) {
	l.wantOnly(http.StatusCreated, http.StatusServiceUnavailable)
	l.wantWithin(responseLimit)
	s.audit(ctx, l)
}

// backendsTerminated is row 6: a lost connection costs at most the write in progress on it.
// Reads are repeated. If the database refuses connections, requests get 503.
func backendsTerminated(ctx context.Context, f *fixture) string {
	s := f.open(ctx)
	w, r := s.startWritersOf(ctx, spread(16, smallStores)), s.startReaders(ctx, 4)
	for range 20 {
		s.db.terminateBackends(ctx)
		sleep(ctx, 200*time.Millisecond)
	}
	l, reads := w.finish(), r.finish()
	succeeded := float64(l.statuses[http.StatusCreated]) / float64(l.total())
	must.Hold(succeeded >= 0.9, "%s: only %.1f%% succeed", l.summary(), 100*succeeded)
	failed := reads.total() - reads.statuses[http.StatusOK]
	must.Hold(1000*failed <= reads.total(), "reads: %s, want at most 0.1%% errors, because the server repeats reads", reads.summary())
	s.idleTerminated(ctx)

	s.db.allowConnections(ctx, false)
	s.db.terminateBackends(ctx)
	w = s.startWritersOf(ctx, spread(16, smallStores))
	sleep(ctx, time.Second)
	refused := w.finish()
	must.Explain("when connections are refused", func() {
		refused.wantOnly(http.StatusServiceUnavailable)
		refused.wantWithin(responseLimit)
	})
	s.db.allowConnections(ctx, true)
	s.awaitWorking(ctx, 3*time.Second)
	s.checkWriters(ctx, l)
	return fmt.Sprintf("%s, slowest %s, 0 of %d lost; %.1f%% succeed; reads: %s; refused: %s; %s",
		l.summary(), round(l.slowest), len(l.placed), 100*succeeded, reads.summary(), refused.summary(), s.checkStores(ctx))
}

// idleTerminated terminates all backends of an idle pool. The next orders must succeed on
// new connections.
func (s *deployment) idleTerminated(ctx context.Context) {
	s.fillPool(ctx, poolSize)
	s.db.terminateBackends(ctx)
	must.Await(ctx, time.Second, func() {
		left := s.db.count(ctx, "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'petstore'")
		must.Hold(left == 0, "%d backends still run", left)
	})
	var l ledger
	must.Parallel(poolSize, func(number int) { l.record(s.order(ctx, 1+number)) })
	must.Explain("after idle connections were terminated", func() { l.wantOnly(http.StatusCreated) })
}

// fillPool makes the service open that many connections: lists with different filters that
// wait for a lock at the same time take one each.
func (s *deployment) fillPool(ctx context.Context, conns int) {
	release := s.db.holdLock(ctx, "LOCK TABLE orders IN ACCESS EXCLUSIVE MODE")
	defer release()
	var l ledger
	wait := must.Background(func() { must.Parallel(conns, func(number int) { l.record(s.listOrders(ctx, 1+number)) }) })
	s.db.awaitLockWaits(ctx, conns)
	release()
	wait()
	l.wantOnly(http.StatusOK)
}

// listOrders lists the orders of a pet. Lists of different pets run statements of their own,
// but reads of single pets share them.
func (c *client) listOrders(ctx context.Context, pet int) (response, error) {
	return c.do(ctx, "GET", fmt.Sprintf("/store/orders?petId=%d", pet), "")
}

// databaseFrozen is row 7: if the database keeps its connections open but does not respond,
// requests get 503 by their deadline.
func databaseFrozen(ctx context.Context, f *fixture) string {
	s := f.open(ctx)
	w := s.startWriters(ctx, 16) // so that every connection of the pool is in use
	sleep(ctx, 300*time.Millisecond)
	l := w.finish()
	s.db.signal(syscall.SIGSTOP)
	defer s.db.signal(syscall.SIGCONT) // it may run already
	var frozen ledger
	must.Parallel(48, func(number int) {
		if number%2 == 0 {
			frozen.record(s.order(ctx, 1+number))
		} else {
			frozen.record(s.getPet(ctx, 1+number))
		}
	})
	frozen.wantOnly(http.StatusServiceUnavailable)
	frozen.wantWithin(responseLimit)
	s.db.signal(syscall.SIGCONT)
	back := s.awaitWorking(ctx, 3*time.Second)
	s.audit(ctx, l)
	return fmt.Sprintf("%s, slowest %s; working again after %s", frozen.summary(), round(frozen.slowest), round(back))
}

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

package main

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"time"

	"petstore/internal/tools/must"
)

// dropPartitions drops all partitions of events, as if nobody had created any for weeks.
const dropPartitions = `
	DO $$
	DECLARE
		part regclass;
	BEGIN
		FOR part IN SELECT inhrelid FROM pg_inherits WHERE inhparent = 'events'::regclass LOOP
			EXECUTE 'DROP TABLE ' || part;
		END LOOP;
	END
	$$`

// missingPartitions (row 48): the partitions of events are missing at the start, or vanish
// under load. No write fails with 500. Writes succeed within 5 s after it is possible to
// create partitions, and /readyz returns 503 until then.
func missingPartitions(ctx context.Context, f *fixture) string {
	const drops, pause, patience = 5, 200 * time.Millisecond, 5 * time.Second
	s := f.open(ctx)
	started := s.startWithoutPartitions(ctx, patience)
	w := s.startWriters(ctx, 4)
	var slowest time.Duration
	for range drops {
		s.db.exec(ctx, dropPartitions)
		slowest = max(slowest, s.awaitOrder(ctx, http.StatusCreated, patience))
		sleep(ctx, pause)
	}
	l := w.finish()
	l.wantOnly(http.StatusCreated, http.StatusServiceUnavailable)
	s.audit(ctx, l)
	s.checkWorks(ctx)
	return fmt.Sprintf("orders %s after the start was unblocked; partitions vanished %d times: %s, orders again after %s", round(started), drops, l.summary(), round(slowest))
}

// awaitOrder waits until an order has this status, and returns how long that took.
func (s *deployment) awaitOrder(ctx context.Context, status int, limit time.Duration) time.Duration {
	return must.Await(ctx, limit, func() { must.Get(s.order(ctx, 1)).check(status) })
}

// startWithoutPartitions restarts the service while partitions are missing, and a lock keeps
// it from creating them. It returns how long after the lock the first write succeeded.
func (s *deployment) startWithoutPartitions(ctx context.Context, patience time.Duration) time.Duration {
	s.api.kill()
	s.db.exec(ctx, dropPartitions)
	release := s.db.holdLock(ctx, "LOCK TABLE events IN SHARE UPDATE EXCLUSIVE MODE")
	defer release()
	s.api.start()
	s.awaitOrder(ctx, http.StatusServiceUnavailable, patience)
	ready := s.want(ctx, http.StatusServiceUnavailable, "GET", "/readyz", "")
	must.Hold(strings.Contains(string(ready.body), `"partitions":"missing"`), "GET /readyz: %s", ready)
	release()
	took := s.awaitOrder(ctx, http.StatusCreated, patience)
	s.api.awaitReady(ctx, patience)
	return took
}

package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"
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
func missingPartitions(ctx context.Context, f *fixture) (string, error) {
	const drops, pause, patience = 5, 200 * time.Millisecond, 5 * time.Second
	s, err := f.open(ctx)
	if err != nil {
		return "", err
	}
	started, err := s.startWithoutPartitions(ctx, patience)
	if err != nil {
		return "", fmt.Errorf("at the start: %w", err)
	}
	w := s.startWriters(ctx, 4)
	var slowest time.Duration
	for range drops {
		if err := s.db.exec(ctx, dropPartitions); err != nil {
			return "", err
		}
		took, err := eventually(ctx, patience, func() error { return s.orderReturns(ctx, http.StatusCreated) })
		if err != nil {
			return "", fmt.Errorf("after the partitions vanished: %w", err)
		}
		slowest = max(slowest, took)
		sleep(ctx, pause)
	}
	written := w.finish()
	if err := errors.Join(written.only(http.StatusCreated, http.StatusServiceUnavailable), s.audit(ctx, written), s.checkWorks(ctx)); err != nil {
		return "", err
	}
	return fmt.Sprintf("orders %s after the start was unblocked; partitions vanished %d times: %s, orders again after %s", round(started), drops, written.summary(), round(slowest)), nil
}

// orderReturns returns an error unless an order has this status.
func (s *deployment) orderReturns(ctx context.Context, status int) error {
	resp, err := s.order(ctx, 1)
	if err == nil {
		err = resp.check(status)
	}
	return err
}

// startWithoutPartitions restarts the service while partitions are missing, and a lock keeps
// it from creating them. It returns how long after the lock the first write succeeded.
func (s *deployment) startWithoutPartitions(ctx context.Context, patience time.Duration) (time.Duration, error) {
	s.api.kill()
	if err := s.db.exec(ctx, dropPartitions); err != nil {
		return 0, err
	}
	release, err := s.db.holdLock(ctx, databaseName, "LOCK TABLE events IN SHARE UPDATE EXCLUSIVE MODE")
	if err != nil {
		return 0, err
	}
	defer release()
	if err := s.api.start(); err != nil {
		return 0, err
	}
	if _, err := eventually(ctx, patience, func() error { return s.orderReturns(ctx, http.StatusServiceUnavailable) }); err != nil {
		return 0, err
	}
	ready, err := s.want(ctx, http.StatusServiceUnavailable, "GET", "/readyz", "")
	if err == nil && !strings.Contains(string(ready.body), `"partitions":"missing"`) {
		err = fmt.Errorf("GET /readyz: %s", ready)
	}
	if err != nil {
		return 0, err
	}
	release()
	took, err := eventually(ctx, patience, func() error { return s.orderReturns(ctx, http.StatusCreated) })
	if err == nil {
		_, err = s.api.awaitReady(ctx, patience)
	}
	return took, err
}

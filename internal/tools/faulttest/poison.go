package main

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"
)

// poisoned makes PostgreSQL fail the messages that name an action and an SQLSTATE, such as
// "raise 53100". The constraint trigger fails them at COMMIT.
const poisoned = `
	CREATE FUNCTION poison() RETURNS trigger LANGUAGE plpgsql AS $$
	BEGIN
		CASE split_part(NEW.message, ' ', 1)
			WHEN 'raise', 'commit' THEN RAISE EXCEPTION 'poison' USING ERRCODE = split_part(NEW.message, ' ', 2);
			WHEN 'terminate' THEN PERFORM pg_terminate_backend(pg_backend_pid());
			WHEN 'sleep' THEN PERFORM pg_sleep(split_part(NEW.message, ' ', 2)::int);
		END CASE;
		RETURN NULL;
	END
	$$;
	CREATE TRIGGER at_once AFTER INSERT ON messages FOR EACH ROW WHEN (NEW.message ~ '^(raise|terminate|sleep) ') EXECUTE FUNCTION poison();
	CREATE CONSTRAINT TRIGGER at_commit AFTER INSERT ON messages DEFERRABLE INITIALLY DEFERRED
		FOR EACH ROW WHEN (NEW.message ~ '^commit ') EXECUTE FUNCTION poison()`

// poisonedGroups is row 47: one of 61 writes that arrive together makes PostgreSQL report an
// error of each class, at its statement and at COMMIT. It also loses its connection, and
// hangs beyond statement_timeout. It fails alone: all others succeed within three seconds,
// and the feed has each of them once.
func poisonedGroups(ctx context.Context, f *fixture) (string, error) {
	const limit = 3 * time.Second
	s, err := f.open(ctx)
	if err != nil {
		return "", err
	}
	if err := s.db.exec(ctx, poisoned); err != nil {
		return "", err
	}
	last, err := s.newest(ctx)
	if err != nil {
		return "", err
	}
	store, err := s.readStore(ctx)
	if err != nil {
		return "", err
	}
	following, stop := context.WithCancel(ctx)
	defer stop()
	subscribers := []*subscriber{{instances: []*client{s.client}}, {instances: []*client{s.client}, streams: true}}
	wait := subscribe(following, last, subscribers...)
	texts := []string{"terminate now", "sleep 6"}
	for _, state := range []string{"22003", "23514", "25006", "40001", "53100", "55000", "57014", "58030", "P0001", "XX000"} {
		texts = append(texts, "raise "+state, "commit "+state)
	}
	var neighbors ledger
	for _, text := range texts {
		if err := s.sendGroup(ctx, text, &neighbors); err != nil {
			return "", fmt.Errorf("%q: %w", text, err)
		}
	}
	err = errors.Join(neighbors.only(http.StatusCreated, http.StatusAccepted), neighbors.within(limit), s.awaitSubscribers(ctx, 5*time.Second, subscribers...))
	stop()
	var alone int // a transaction of several writes has several orders
	err = errors.Join(err, wait(), s.db.read(ctx, "SELECT count(DISTINCT xmin::text) FROM orders", nil, &alone))
	if err == nil && alone < len(neighbors.placed)/2 {
		err = fmt.Errorf("%d orders in %d transactions, so few shared a group with the poisoned write", len(neighbors.placed), alone)
	}
	if err == nil {
		var paths []string
		for _, id := range neighbors.placed {
			paths = append(paths, fmt.Sprintf("/store/orders/%d", id))
		}
		err = s.compareStore(ctx, store, paths, subscribers)
	}
	return fmt.Sprintf("%d poisoned writes; neighbors: %s, slowest %s, %d transactions of %d orders; %d events without a gap, the copy equals the store",
		len(texts), neighbors.summary(), round(neighbors.slowest), alone, len(neighbors.placed), len(subscribers[0].events)), err
}

// sendGroup sends a message that fails, and 60 orders and messages. They wait together
// behind an order whose table is locked.
func (s *deployment) sendGroup(ctx context.Context, text string, others *ledger) error {
	const neighbors = 60
	release, err := s.db.holdLock(ctx, databaseName, "LOCK TABLE inventory IN ACCESS EXCLUSIVE MODE")
	if err != nil {
		return err
	}
	defer release()
	var group sync.WaitGroup
	send := func(request func() (response, error)) {
		group.Go(func() { others.record(request()) })
	}
	send(func() (response, error) { return s.order(ctx, pets) })
	if err := s.db.awaitLockWaits(ctx, 1); err != nil {
		return err
	}
	for number := range neighbors {
		send(func() (response, error) {
			if number%2 == 0 {
				return s.order(ctx, 1+number)
			}
			return s.do(ctx, "POST", "/messages", `{"message": "hello"}`)
		})
	}
	var failed error
	group.Go(func() {
		resp, err := s.do(ctx, "POST", "/messages", fmt.Sprintf(`{"message": %q}`, text))
		if failed = err; err == nil && resp.status < http.StatusInternalServerError {
			failed = fmt.Errorf("the poisoned write: %s", resp)
		}
	})
	// The others wait for the same lock as soon as they have waited 250 ms for the order.
	err = s.db.awaitLockWaits(ctx, 2)
	release()
	group.Wait()
	return errors.Join(err, failed)
}

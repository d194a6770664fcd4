package main

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"petstore/internal/tools/must"
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
func poisonedGroups(ctx context.Context, f *fixture) string {
	const limit = 3 * time.Second
	s := f.open(ctx)
	s.db.exec(ctx, poisoned)
	feed := s.follow(ctx, s.client)
	texts := []string{"terminate now", "sleep 6"}
	for _, state := range []string{"22003", "23514", "25006", "40001", "53100", "55000", "57014", "58030", "P0001", "XX000"} {
		texts = append(texts, "raise "+state, "commit "+state)
	}
	var neighbors ledger
	for _, text := range texts {
		must.Explain(text, func() { s.sendGroup(ctx, text, &neighbors) })
	}
	neighbors.wantOnly(http.StatusCreated, http.StatusAccepted)
	neighbors.wantWithin(limit)
	transactions := s.db.count(ctx, "SELECT count(DISTINCT xmin::text) FROM orders")
	must.Hold(transactions >= len(neighbors.placed)/2, "%d orders in %d transactions, so few shared a group with the poisoned write", len(neighbors.placed), transactions)
	paths := make([]string, len(neighbors.placed))
	for i, id := range neighbors.placed {
		paths[i] = fmt.Sprintf("/store/orders/%d", id)
	}
	return fmt.Sprintf("%d poisoned writes; neighbors: %s, slowest %s, %d transactions of %d orders; %d events without a gap, the copy equals the store",
		len(texts), neighbors.summary(), round(neighbors.slowest), transactions, len(paths), feed.check(ctx, paths))
}

// sendGroup sends a message that fails, and 60 orders and messages. They wait together
// behind an order whose table is locked.
func (s *deployment) sendGroup(ctx context.Context, text string, others *ledger) {
	const neighbors = 60
	release := s.db.holdLock(ctx, "LOCK TABLE inventory IN ACCESS EXCLUSIVE MODE")
	defer release()
	waitFirst := must.Background(func() { others.record(s.order(ctx, pets)) })
	s.db.awaitLockWaits(ctx, 1)
	wait := must.Background(func() {
		must.Parallel(neighbors+1, func(number int) {
			switch {
			case number == neighbors:
				resp := must.Get(s.do(ctx, "POST", "/messages", fmt.Sprintf(`{"message": %q}`, text)))
				must.Hold(resp.status >= http.StatusInternalServerError, "the poisoned write: %s", resp)
			case number%2 == 0:
				others.record(s.order(ctx, 1+number))
			default:
				others.record(s.do(ctx, "POST", "/messages", `{"message": "hello"}`))
			}
		})
	})
	// The others wait for the same lock as soon as they have waited 250 ms for the order.
	s.db.awaitLockWaits(ctx, 2)
	release()
	waitFirst()
	wait()
}

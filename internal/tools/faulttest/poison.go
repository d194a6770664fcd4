package main

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"petstore/internal/tools/must"
)

// poisoned makes PostgreSQL fail the messages and the changes of pets whose text or name has an
// action and an SQLSTATE, such as "raise 53100". The constraint triggers fail them at COMMIT.
const poisoned = `
	CREATE FUNCTION poison() RETURNS trigger LANGUAGE plpgsql AS $$
	DECLARE
		words text[] := string_to_array(coalesce(to_jsonb(NEW)->>'message', to_jsonb(NEW)->>'name'), ' ');
	BEGIN
		CASE words[1]
			WHEN 'raise', 'commit' THEN RAISE EXCEPTION 'poison' USING ERRCODE = words[2];
			WHEN 'terminate' THEN PERFORM pg_terminate_backend(pg_backend_pid());
			WHEN 'sleep' THEN PERFORM pg_sleep(words[2]::int);
		END CASE;
		RETURN NULL;
	END
	$$;
	CREATE TRIGGER at_once AFTER INSERT ON messages FOR EACH ROW WHEN (NEW.message ~ '^(raise|terminate|sleep) ') EXECUTE FUNCTION poison();
	CREATE TRIGGER at_once AFTER UPDATE ON pets FOR EACH ROW WHEN (NEW.name ~ '^(raise|terminate|sleep) ') EXECUTE FUNCTION poison();
	CREATE CONSTRAINT TRIGGER at_commit AFTER INSERT ON messages DEFERRABLE INITIALLY DEFERRED
		FOR EACH ROW WHEN (NEW.message ~ '^commit ') EXECUTE FUNCTION poison();
	CREATE CONSTRAINT TRIGGER at_commit AFTER UPDATE ON pets DEFERRABLE INITIALLY DEFERRED
		FOR EACH ROW WHEN (NEW.name ~ '^commit ') EXECUTE FUNCTION poison()`

// poisonedGroups is row 47: one of 61 writes that arrive together makes PostgreSQL report an
// error of each class, at its statement and at COMMIT. It also loses its connection, and
// hangs beyond statement_timeout. It fails alone: all others succeed within three seconds,
// and the feed has each of them once. The writes belong to one account, and then to many. At
// last another session holds the feed of an account, and only the orders of that one wait.
func poisonedGroups(ctx context.Context, f *fixture) string {
	const limit = 3 * time.Second
	s := f.open(ctx)
	s.db.exec(ctx, poisoned)
	feed := s.follow(ctx, s.client)
	texts := []string{"terminate now", "sleep 6"}
	for _, state := range []string{"22003", "23514", "25006", "40001", "53100", "55000", "57014", "58030", "P0001", "XX000"} {
		texts = append(texts, "raise "+state, "commit "+state)
	}
	sandboxes := s.addKeys(ctx, "poisoner", 1, len(texts))[1:] // after its failure each has groups of its own for some time
	s.db.exec(ctx, "UPDATE accounts SET name = 'poisoner ' || id WHERE parent_id IS NOT NULL")
	s.db.fillStore(ctx, "poisoner %")
	var one, many ledger
	for i, text := range texts {
		must.Explain(text, func() {
			s.sendGroup(ctx, &one, s.client,
				func() (response, error) { return s.do(ctx, "POST", "/messages", fmt.Sprintf(`{"message": %q}`, text)) },
				func(number int) (response, error) {
					if number%2 == 0 {
						return s.order(ctx, 1+number)
					}
					return s.do(ctx, "POST", "/messages", `{"message": "hello"}`)
				})
		})
		must.Explain(text+" beside other accounts", func() {
			s.sendGroup(ctx, &many, s.api.store(1),
				func() (response, error) {
					return s.withKey(sandboxes[i]).do(ctx, "PATCH", "/pets/1", fmt.Sprintf(`{"name": %q}`, text))
				},
				func(number int) (response, error) { return s.api.store(1+number%smallStores).order(ctx, 1+number) })
		})
	}
	figures := fmt.Sprintf("%d poisoned writes; ", 2*len(texts))
	for i, l := range []*ledger{&one, &many} {
		what := []string{"neighbors", "neighbors of other accounts"}[i]
		l.wantOnly(http.StatusCreated, http.StatusAccepted)
		l.wantWithin(limit)
		transactions := s.db.count(ctx, "SELECT count(DISTINCT xmin::text) FROM orders WHERE id = ANY ($1)", l.placed)
		figures += fmt.Sprintf("%s: %s, slowest %s, %d transactions of %d orders; ", what, l.summary(), round(l.slowest), transactions, len(l.placed))
		must.Hold(transactions >= len(l.placed)/2, "%s so few shared a group with the poisoned write", figures)
	}
	paths := make([]string, len(one.placed))
	for i, id := range one.placed {
		paths[i] = fmt.Sprintf("/store/orders/%d", id)
	}
	figures += fmt.Sprintf("%d events without a gap, the copy equals the store; ", feed.check(ctx, paths))
	figures += s.besideHeld(ctx)
	s.audit(ctx, &many)
	return figures + s.checkStores(ctx)
}

// besideHeld places orders of small stores while another session holds the feed of one of
// them. It fails the row if the orders of the others wait for it.
func (s *deployment) besideHeld(ctx context.Context) (figures string) {
	const held, orders, during, limit = smallStores, 4, 1500 * time.Millisecond, 900 * time.Millisecond
	w := s.startWritersOf(ctx, spread(0, smallStores-1))
	release := s.db.holdLock(ctx, fmt.Sprintf("SELECT FROM account_state JOIN accounts ON id = account_id WHERE name = '%s %d' FOR NO KEY UPDATE OF account_state", accountName, held))
	defer release()
	var waited ledger
	wait := must.Background(func() {
		must.Parallel(orders, func(number int) { waited.record(s.api.store(held).order(ctx, 1+number)) })
	})
	s.db.awaitLockWaits(ctx, 1)
	sleep(ctx, during)
	release()
	wait()
	l := w.finish()
	waited.wantOnly(http.StatusCreated)
	must.Hold(waited.slowest >= during, "the feed of the account was not held")
	must.Explain("beside an account whose feed is held", func() {
		l.wantOnly(http.StatusCreated)
		l.wantWithin(limit)
	})
	return fmt.Sprintf("beside an account whose feed is held: %s, slowest %s; ", l.summary(), round(l.slowest))
}

// sendGroup sends a write that fails, and 60 others. They wait together behind an order whose
// table is locked.
func (s *deployment) sendGroup(ctx context.Context, others *ledger, first *client, poison func() (response, error), send func(number int) (response, error)) {
	const neighbors = 60
	release := s.db.holdLock(ctx, "LOCK TABLE inventory IN ACCESS EXCLUSIVE MODE")
	defer release()
	waitFirst := must.Background(func() { others.record(first.order(ctx, pets)) })
	s.db.awaitLockWaits(ctx, 1)
	wait := must.Background(func() {
		must.Parallel(neighbors+1, func(number int) {
			if number == neighbors {
				resp := must.Get(poison())
				must.Hold(resp.status >= http.StatusInternalServerError, "the poisoned write: %s", resp)
				return
			}
			others.record(send(number))
		})
	})
	// The others wait for the same lock as soon as they have waited 250 ms for the order.
	s.db.awaitLockWaits(ctx, 2)
	release()
	waitFirst()
	wait()
}

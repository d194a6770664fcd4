package groupcommit

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5"

	"petstore/db"
	"petstore/internal/account"
	"petstore/internal/event"
	"petstore/internal/pgtest"
	"petstore/internal/stock"
	"petstore/internal/tools/need"
)

// newStores creates accounts. Each has the pets 1 to 4 of the category 1, with 10 units of each.
func (f *fixture) newStores(ids ...int64) {
	f.t.Helper()
	for _, id := range ids {
		f.exec(fmt.Sprintf(`
			INSERT INTO accounts (id, name) VALUES (%[1]d, 'account %[1]d');
			INSERT INTO account_state (account_id) VALUES (%[1]d);
			INSERT INTO categories (account_id, id, name, name_key) VALUES (%[1]d, 1, 'Dogs', 'dogs');
			INSERT INTO pets (account_id, id, category_id, name, name_key, status)
				SELECT %[1]d, id, 1, 'Rex', 'rex', 'available' FROM generate_series(1, 4) AS id;
			INSERT INTO inventory (account_id, pet_id, quantity) SELECT account_id, id, 10 FROM pets WHERE account_id = %[1]d`, id))
	}
}

// emits makes a write report an event with the response as its data.
func emits(w *Write) *Write {
	decide := w.Decide
	w.Decide = func(s *State) (Response, error) {
		r, err := decide(s)
		if err == nil {
			s.Emit(event.Event{Type: event.InventoryUpdated, Subject: "/store/inventory/1", Data: fmt.Appendf(nil, `{"text":%q}`, r.Body)})
		}
		return r, err
	}
	return w
}

// feed describes the events of a store.
func (f *fixture) feed(store Store) []string {
	f.t.Helper()
	return pgtest.List[string](f.t, f.database.Pool, "SELECT sequence || ' ' || (data->>'text') FROM events WHERE account_id = $1 ORDER BY sequence", store.AccountID)
}

// TestStoresThatLeaveTheCommonGroup: whatever keeps a write of one store from its group does
// not keep the write of another, which commits at once.
func TestStoresThatLeaveTheCommonGroup(t *testing.T) {
	t.Parallel()
	pgtest.Not(t, pgtest.Citus, "it has no such groups")
	const reset = `
		DELETE FROM orders; DELETE FROM events; DELETE FROM idempotency_keys;
		UPDATE inventory SET quantity = 10, held = 0; UPDATE account_state SET closed = DEFAULT, last_order_id = DEFAULT;`
	f := newFixture(t)
	f.newSandbox()
	panics := &Write{Pet: 1, Decide: func(*State) (Response, error) { panic("a bug") }}
	for what, test := range map[string]struct {
		before string // SQL
		write  storeWrite
		want   error
	}{
		"its account is gone":             {"", storeWrite{Store{AccountID: 99}, order(1, 1)}, errNotLocked},
		"its pet is missing":              {"", storeWrite{one, order(9, 1)}, errNotLocked},
		"the response of its key expired": {"INSERT INTO idempotency_keys SELECT 1, 1, 'key', sha256('other'), 201, '', '', now() - interval '2 days'", storeWrite{one, under("key", order(1, 1))}, errNotLocked},
		"its sandbox is being deleted":    {"UPDATE account_state SET closed = true WHERE account_id = 3", storeWrite{sandbox, order(1, 1)}, account.ErrClosed},
		"its sandbox is gone":             {"", storeWrite{Store{AccountID: 99, Sandbox: true}, order(1, 1)}, account.ErrClosed},
		"its sandbox may become full":     {fmt.Sprintf("UPDATE account_state SET last_order_id = %d WHERE account_id = 3", smallID+1), storeWrite{sandbox, order(1, 1)}, errUncounted},
		"its sandbox cannot become full":  {fmt.Sprintf("UPDATE account_state SET last_order_id = %d WHERE account_id = 3", smallID), storeWrite{sandbox, order(1, 1)}, nil},
		"it creates no row":               {fmt.Sprintf("UPDATE account_state SET last_order_id = %d WHERE account_id = 3", smallID+1), storeWrite{sandbox, restock(1, 1)}, nil},
	} {
		f.exec(reset + test.before)
		writes := []storeWrite{test.write, {two, emits(order(2, 4))}, {one, panics}}
		decided := need.Value(f.run(t.Context(), newGroup(commonGroup, writes...)))(t)
		if !errors.Is(decided[0].err, test.want) {
			t.Errorf("%s: the write: %v, want %v", what, decided[0].err, test.want)
		}
		if decided[1].err != nil {
			t.Errorf("%s: its neighbor: %v", what, decided[1].err)
		}
		if rows := f.stored(two); len(rows) != 5 || rows[0] != "order of pet 2: 4, f" || len(f.feed(two)) != 1 {
			t.Errorf("%s: the store of its neighbor has %q and the events %q", what, rows, f.feed(two))
		}
		for _, row := range f.stored(one) {
			if strings.HasPrefix(row, "order") || !strings.HasSuffix(row, "10 in stock, 0 held") {
				t.Errorf("%s: its store has %s", what, row)
			}
		}
	}
}

// TestUncountedStoreLeaves: a sandbox that may become full has groups of its own for a while. So only the
// first of its writes is tried in a common group.
func TestUncountedStoreLeaves(t *testing.T) {
	t.Parallel()
	pgtest.Not(t, pgtest.Citus, "it has no such groups")
	f := newFixture(t)
	f.newSandbox()
	f.exec(fmt.Sprintf("UPDATE account_state SET last_order_id = %d WHERE account_id = 3", smallID+1))
	need.Value(f.Do(t.Context(), sandbox, order(1, 1)))(t)
	if !f.apart.begin(sandbox.AccountID) || f.apart.isHeld(sandbox.AccountID) {
		t.Error("the next order goes to a common group, or waits for the feed")
	}
}

// TestRotationDelaysNobody: a group stores a response under an API key whose secret another
// transaction changes. It does not wait for that.
func TestRotationDelaysNobody(t *testing.T) {
	t.Parallel()
	pgtest.Not(t, pgtest.Citus, "it has no such groups")
	f := newFixture(t)
	err := pgx.BeginFunc(t.Context(), f.database.Pool, func(tx pgx.Tx) error {
		_, err := tx.Exec(t.Context(), "UPDATE api_keys SET secret_sha256 = sha256('new'), previous_sha256 = secret_sha256, previous_until = now() WHERE id = 1")
		if err != nil {
			return err
		}
		decided, err := f.run(t.Context(), newGroup(commonGroup, storeWrite{one, under("key", order(1, 1))}, storeWrite{two, order(1, 1)}))
		return errors.Join(err, decided[0].err, decided[1].err)
	})
	if err != nil {
		t.Error(err)
	}
}

// TestHeldFeedDelaysNobodyElse: while another transaction holds the feed of a store, its
// writes wait, and the writes of others do not.
func TestHeldFeedDelaysNobodyElse(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	var held sync.WaitGroup
	need.OK(t, pgx.BeginFunc(t.Context(), f.database.Pool, func(tx pgx.Tx) error {
		if err := event.Append(t.Context(), db.New(tx), one.AccountID, event.Event{Type: event.InventoryUpdated, Subject: "/store/inventory/1", Data: []byte(`{"text":"first"}`)}); err != nil {
			return err
		}
		for range 3 {
			held.Go(func() {
				if _, err := f.Do(t.Context(), one, emits(order(1, 1))); err != nil {
					t.Errorf("the write that waits: %v", err)
				}
			})
		}
		f.awaitLockWaiter()
		for range 3 {
			if _, err := f.Do(t.Context(), two, emits(order(1, 1))); err != nil {
				t.Errorf("the write of another store: %v", err)
			}
		}
		return nil
	}))
	held.Wait()
	if got := f.feed(one); len(got) != 4 || got[0] != "1 first" {
		t.Errorf("the feed is %q", got)
	}
}

// TestManyHeldFeeds: a backend is stuck with the feeds of many stores, as one that is frozen
// during the COMMIT of a common group. The writes of these stores leave connections to others.
func TestManyHeldFeeds(t *testing.T) {
	t.Parallel()
	pgtest.Not(t, pgtest.Citus, "it has no such groups")
	const stores, clients = 30, 2
	f := newFixture(t)
	var stuck []Store
	for id := int64(10); id < 10+stores; id++ {
		f.newStores(id)
		stuck = append(stuck, Store{AccountID: id, Payer: id})
	}
	err := pgx.BeginFunc(t.Context(), f.database.Pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), "SELECT FROM account_state WHERE account_id >= 10 FOR NO KEY UPDATE"); err != nil {
			return err
		}
		decided, err := f.run(t.Context(), newGroup(commonGroup, storeWrite{stuck[0], emits(order(1, 1))}, storeWrite{one, emits(restock(1, 5))}))
		if err = errors.Join(err, decided[1].err); err != nil || !errors.Is(decided[0].err, errFeedHeld) {
			return fmt.Errorf("the neighbor of a stuck write: %w, and the write: %w", err, decided[0].err)
		}
		requests, cancel := context.WithTimeout(t.Context(), 3*time.Second) // longer than lock_timeout
		defer cancel()
		var waiting sync.WaitGroup
		defer waiting.Wait()
		for client := range stores * clients {
			waiting.Go(func() {
				for requests.Err() == nil {
					if _, err := f.Do(requests, stuck[client%stores], emits(order(1+int64(client/stores), 1))); err == nil || errors.Is(err, errFeedHeld) {
						t.Errorf("a write to a store whose feed is held: %v", err)
						return
					}
				}
			})
		}
		// until they hold all connections that they can get
		forWrites := 2 * f.db.LockWaits()
		poll := time.NewTicker(10 * time.Millisecond)
		defer poll.Stop()
		for waiters := 0; waiters < forWrites && !f.locks.IsContended(); {
			<-poll.C
			if waiters, err = pgtest.LockWaiters(requests, f.database.Pool); err != nil {
				return err
			}
		}
		for requests.Err() == nil {
			<-poll.C
			if _, err := f.Do(t.Context(), one, emits(restock(1, 5))); err != nil {
				return fmt.Errorf("a write to another store: %w", err)
			}
		}
		return nil
	})
	need.OK(t, err)
	for _, store := range stuck {
		if _, err := f.Do(t.Context(), store, emits(order(1, 1))); err != nil {
			t.Errorf("afterwards, a write to store %d: %v", store.AccountID, err)
		}
	}
}

// TestPoisonedStoreFailsAlone: one write makes the server fail its group, at its statement or
// at COMMIT. The writes of other stores do not fail, and each has its effect once. The store of
// the poisoned write then has groups of its own.
func TestPoisonedStoreFailsAlone(t *testing.T) {
	t.Parallel()
	pgtest.Not(t, pgtest.Citus, "its tables have no triggers")
	f := newFixture(t)
	neighbors := []int64{1, 4, 5, 6, 7}
	f.newStores(neighbors[1:]...)
	f.exec(`
		CREATE FUNCTION poison() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			RAISE EXCEPTION 'poison' USING ERRCODE = '53100';
		END
		$$;
		CREATE TRIGGER at_once AFTER INSERT ON orders FOR EACH ROW WHEN (NEW.account_id = 2 AND NEW.pet_id = 1) EXECUTE FUNCTION poison();
		CREATE CONSTRAINT TRIGGER at_commit AFTER INSERT ON orders DEFERRABLE INITIALLY DEFERRED
			FOR EACH ROW WHEN (NEW.account_id = 2 AND NEW.pet_id = 2) EXECUTE FUNCTION poison()`)
	for petID := int64(1); petID <= 2; petID++ {
		poisoned := f.openAgain() // which does not know the store yet
		var writes []storeWrite
		for _, id := range neighbors {
			writes = append(writes, storeWrite{Store{AccountID: id, Payer: id}, emits(order(petID, 1))})
		}
		failures, decided := f.togetherOf(poisoned, append(writes, storeWrite{Store{AccountID: 2, Payer: 2}, order(petID, 1)})...)
		for i := range neighbors {
			if failures[i] != nil || decided[i] != 2 {
				t.Errorf("pet %d, a neighbor was decided %d times: %v", petID, decided[i], failures[i])
			}
		}
		if last := len(neighbors); stateOf(failures[last]) != "53100" || decided[last] != 2 {
			t.Errorf("pet %d, the poisoned write was decided %d times: %v", petID, decided[last], failures[last])
		}
		for _, id := range neighbors {
			if got := f.feed(Store{AccountID: id}); len(got) != int(petID) {
				t.Errorf("store %d has the events %q after %d orders", id, got, petID)
			}
		}
		if !poisoned.apart.begin(2) || poisoned.apart.begin(1) {
			t.Error("the store of the poisoned write has no groups of its own, or another store has")
		}
	}
}

// TestCommonGroupGivesUpOnAHangingStore: a write of a common group hangs. The group gives up
// long before statement_timeout.
func TestCommonGroupGivesUpOnAHangingStore(t *testing.T) {
	t.Parallel()
	pgtest.Not(t, pgtest.Citus, "its tables have no triggers")
	f := newFixture(t)
	f.exec(`
		CREATE FUNCTION hang() RETURNS trigger LANGUAGE plpgsql AS $$
		BEGIN
			PERFORM pg_sleep(2);
			RETURN NULL;
		END
		$$;
		CREATE TRIGGER hang AFTER INSERT ON orders FOR EACH ROW EXECUTE FUNCTION hang()`)
	if _, err := f.run(t.Context(), newGroup(commonGroup, storeWrite{one, restock(1, 5)}, storeWrite{two, order(1, 1)})); stateOf(err) != "57014" {
		t.Errorf("the group ends with %v", err)
	}
}

// openAgain returns another Committer of the database.
func (f *fixture) openAgain() *Committer {
	f.t.Helper()
	pool := pgtest.Open(f.t, f.database.URL, 12)
	return newCommitter(pool)
}

// TestCommonGroupsOfTwoProcesses: two processes sell the stock of the same pets of several
// stores. They sell each unit once, and the feeds have no gaps.
func TestCommonGroupsOfTwoProcesses(t *testing.T) {
	t.Parallel()
	const clients, each, units = 4, 25, 75
	f := newFixture(t)
	f.newStores(4, 5)
	f.newSandbox()
	f.exec(fmt.Sprint("UPDATE inventory SET quantity = ", units))
	other := f.openAgain()
	stores := []Store{one, two, sandbox, {AccountID: 4, Payer: 4}, {AccountID: 5, Payer: 5}}
	var sold [6]atomic.Int64 // by account
	var running sync.WaitGroup
	for client := range clients * len(stores) {
		c, store := []*Committer{f.Committer, other}[client%2], stores[client/clients]
		running.Go(func() {
			for i := range each {
				_, err := c.Do(t.Context(), store, emits(order(1, 1+int64(i%2))))
				switch {
				case err == nil:
					sold[store.AccountID].Add(1 + int64(i%2))
				case !errors.Is(err, stock.ErrNotAvailable) && !errors.Is(err, stock.ErrInsufficient):
					t.Error(err)
				}
			}
		})
	}
	running.Wait()
	for _, store := range stores {
		var left, held, ordered, events, newest int64
		err := f.database.Pool.QueryRow(t.Context(), `
			SELECT quantity, held, (SELECT sum(quantity) FROM orders WHERE account_id = $1), count(*), max(sequence)
			FROM inventory JOIN events USING (account_id)
			WHERE account_id = $1 AND pet_id = 1
			GROUP BY quantity, held`, store.AccountID).Scan(&left, &held, &ordered, &events, &newest)
		if got := sold[store.AccountID].Load(); err != nil || left != 0 || held != units || got != units || ordered != units || events != newest {
			t.Errorf("account %d sold %d units: %d left, %d held, %d ordered, %d events up to %d, %v", store.AccountID, got, left, held, ordered, events, newest, err)
		}
	}
}

// TestBacklogIsApart: a store with more writes in progress than others may have takes no part
// in common groups until it had fewer for a second.
func TestBacklogIsApart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		a := newApart()
		want := func(what string, account int64, want bool) {
			t.Helper()
			if got := a.begin(account); got != want {
				t.Errorf("%s: apart is %t", what, got)
			}
		}
		for range backlog {
			want("with few writes", 1, false)
		}
		want("with a backlog", 1, true)
		want("beside a backlog", 2, false)
		for left := backlog; left > 0; left-- {
			a.end(1)
			if got := a.inProgress(1); got != left {
				t.Errorf("%d writes are in progress, want %d", got, left)
			}
		}
		want("just after a backlog", 1, true)
		if a.isHeld(1) {
			t.Error("the feed of a store with a backlog counts as held")
		}
		time.Sleep(backlogFor) //nolint:forbidigo // the clock of the test
		want("long after a backlog", 1, false)
		a.excludeHeld(2, failedFor)
		a.excludeHeld(2, contendedFor)
		time.Sleep(contendedFor) //nolint:forbidigo // the clock of the test
		want("after a failure", 2, true)
		if !a.isHeld(2) {
			t.Error("the feed of a store with a failure does not count as held")
		}
		time.Sleep(failedFor - contendedFor) //nolint:forbidigo // the clock of the test
		want("long after a failure", 2, false)
		if a.isHeld(2) {
			t.Error("the feed counts as held long after a failure")
		}
		a.excludeHeld(3, failedFor)
		for account, writes := range map[int64]int{1: 3, 2: 3} {
			for range writes {
				a.end(account)
			}
		}
		if len(a.writes) != 0 || len(a.until.of) != 1 || len(a.held.of) != 1 {
			t.Errorf("it remembers %v, %v and %v", a.writes, a.until, a.held)
		}
		a.exclude(4, failedFor)
		want("whose sandbox may be full", 4, true)
		if a.isHeld(4) {
			t.Error("the feed of an excluded store counts as held")
		}
	})
}

// inProgress returns the number of writes of a store in progress.
func (a *apart) inProgress(account int64) int {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.writes[account]
}

// TestGroupsBesideOtherStores: while other stores write, the groups of a store with a backlog
// are small. When it writes alone, they are large.
func TestGroupsBesideOtherStores(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		beside int // writes of another store in progress
		small  bool
	}{
		{"alone", 0, false},
		{"beside another store", 1, true},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			f := newFixture(t)
			f.exec("UPDATE inventory SET quantity = 1000")
			f.apart.excludeHeld(one.AccountID, time.Hour)
			for range test.beside {
				f.apart.begin(two.AccountID)
			}
			var writes sync.WaitGroup
			write := func() {
				writes.Go(func() {
					if _, err := f.Do(t.Context(), one, emits(order(1, 1))); err != nil {
						t.Error(err)
					}
				})
			}
			need.OK(t, pgx.BeginFunc(t.Context(), f.database.Pool, func(tx pgx.Tx) error {
				if err := event.Append(t.Context(), db.New(tx), one.AccountID, event.Event{Type: event.InventoryUpdated, Subject: "/store/inventory/1", Data: []byte("{}")}); err != nil {
					return err
				}
				write()
				f.awaitLockWaiter()
				for range 2 * maxWritesBeside {
					write()
				}
				poll := time.NewTicker(time.Millisecond)
				defer poll.Stop()
				for f.apart.inProgress(one.AccountID) < 1+2*maxWritesBeside {
					<-poll.C
				}
				return nil
			}))
			writes.Wait()
			largest := pgtest.Read[int](t, f.database.Pool, "SELECT max(n) FROM (SELECT count(*) AS n FROM orders GROUP BY xmin::text) AS groups")
			if small := largest <= maxWritesBeside; small != test.small {
				t.Errorf("the largest group has %d writes", largest)
			}
		})
	}
}

// TestCommonGroupLooksUpRows: PostgreSQL may plan the statements of a group while the tables
// are small, and keeps the plans when they have grown. So the statements look up rows by their
// key at any size.
func TestCommonGroupLooksUpRows(t *testing.T) {
	t.Parallel()
	pgtest.Not(t, pgtest.Citus, "it has no such groups")
	f := newFixture(t)
	f.exec(`
		INSERT INTO pets (account_id, id, category_id, name, name_key, status)
			SELECT 1, id, 1, 'Rex', 'rex', 'available' FROM generate_series(5, 1000) AS id;
		INSERT INTO inventory (account_id, pet_id, quantity) SELECT account_id, id, 10 FROM pets WHERE id > 4`)
	f.exec("VACUUM ANALYZE")
	f.exec("SELECT pg_stat_force_next_flush()") // the statements above have read rows too
	pool := pgtest.Open(t, f.database.DirectURL, 1)
	c := newCommitter(pool)
	read := func() (rows int64) {
		t.Helper()
		_, err := pool.Exec(t.Context(), "SELECT pg_stat_force_next_flush()")
		if err == nil {
			err = f.database.Pool.QueryRow(t.Context(), "SELECT sum(seq_tup_read + idx_tup_fetch) FROM pg_stat_user_tables WHERE relname IN ('inventory', 'pets')").Scan(&rows)
		}
		need.OK(t, err)
		return rows
	}
	before := read()
	decided, err := c.run(t.Context(), newGroup(commonGroup, storeWrite{one, emits(under("key", order(1, 10)))}, storeWrite{two, emits(order(1, 1))}))
	need.OK(t, errors.Join(err, decided[0].err, decided[1].err))
	const most = 20
	if after := read(); after-before > most {
		t.Errorf("the group has read %d rows", after-before)
	}
}

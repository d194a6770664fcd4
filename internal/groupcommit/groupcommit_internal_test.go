package groupcommit

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"petstore/db"
	"petstore/internal/account"
	"petstore/internal/admission"
	"petstore/internal/pgtest"
	"petstore/internal/postgres"
	"petstore/internal/stock"
	"petstore/internal/tools/need"
)

func TestMain(m *testing.M) {
	pgtest.Widen()
	m.Run()
}

// fixture is a database with the accounts 1 and 2. Each has the pets 1 to 4 of the
// category 1, with 10 units of each, and the API key 1 or 2.
type fixture struct {
	t        *testing.T
	database *pgtest.Database
	*Committer
}

var one, two = Store{AccountID: 1}, Store{AccountID: 2}

// newCommitter returns a Committer that shares its pool with nothing else. It has no spare groups,
// which start beside a slow one, so the same writes always share a group.
func newCommitter(pool *postgres.DB) *Committer {
	return newWith(0, pool, admission.New(admission.Locks.Of(pool.LockWaits())))
}

func newFixture(t *testing.T) *fixture {
	t.Helper()
	f := &fixture{t: t, database: pgtest.New(t)}
	pool := pgtest.Open(t, f.database.URL, 12)
	f.Committer = newCommitter(pool)
	f.newStores(1, 2)
	f.exec(`
		INSERT INTO api_keys (id, account_id, name, scope, prefix, secret_sha256)
			SELECT id, id, 'key', 'write', 'petstore_' || id || '234567', sha256(id::text::bytea) FROM accounts`)
	return f
}

func (f *fixture) exec(sql string) {
	f.t.Helper()
	pgtest.Exec(f.t, f.database.Pool, sql)
}

// of returns writes of a store.
func of(store Store, writes ...*Write) []storeWrite {
	all := make([]storeWrite, len(writes))
	for i, w := range writes {
		all[i] = storeWrite{store, w}
	}
	return all
}

// group runs writes in one group of their store.
func (f *fixture) group(store Store, writes ...*Write) ([]outcome, error) {
	return f.run(f.t.Context(), newGroup(ownGroup, of(store, writes...)...))
}

// awaitLockWaiter waits until a session waits for a lock.
func (f *fixture) awaitLockWaiter() {
	f.t.Helper()
	need.OK(f.t, pgtest.AwaitLockWaiters(f.t.Context(), f.database.Pool, 1))
}

// stored describes the pets and orders of a store, without the ids of orders.
func (f *fixture) stored(store Store) []string {
	f.t.Helper()
	return pgtest.List[string](f.t, f.database.Pool, `
		SELECT format('pet %s %s: %s in stock, %s held', id, status, quantity, held)
		FROM pets JOIN inventory USING (account_id) WHERE account_id = $1 AND pet_id = id
		UNION ALL
		SELECT format('order of pet %s: %s, %s', pet_id, quantity, complete) FROM orders WHERE account_id = $1
		ORDER BY 1`, store.AccountID)
}

// order places an order. Its response is the number of units left.
func order(petID, quantity int64) *Write {
	return &Write{Pet: petID, Creates: account.Orders, Decide: func(s *State) (Response, error) {
		pet, known := s.Pets.Get(petID)
		if !known {
			return Response{}, pgx.ErrNoRows
		}
		var err error
		if pet.Stock, err = pet.Stock.Place(quantity); err != nil {
			return Response{}, err
		}
		s.Pets.Set(pet)
		s.Orders.Create(db.Order{PetID: petID, Quantity: quantity})
		return Response{Status: 201, Body: fmt.Append(nil, pet.Stock)}, nil
	}}
}

// under gives a write an Idempotency-Key of account 1.
func under(key string, w *Write) *Write {
	w.Key = &Key{APIKeyID: 1, Key: key, Fingerprint: []byte(strings.Repeat("f", 32))}
	return w
}

// restock sets the stock of a pet.
func restock(petID, quantity int64) *Write {
	return &Write{Pet: petID, Decide: func(s *State) (Response, error) {
		pet, _ := s.Pets.Get(petID)
		pet.Stock = pet.Stock.Restock(quantity)
		s.Pets.Set(pet)
		return Response{Status: 200, Body: fmt.Append(nil, pet.Stock)}, nil
	}}
}

// closeOrder cancels or completes the open order of a pet with the lowest id.
func (f *fixture) closeOrder(store Store, petID int64, complete bool) *Write {
	f.t.Helper()
	var id int64
	need.OK(f.t, f.database.Pool.QueryRow(f.t.Context(), "SELECT coalesce(min(id), 0) FROM orders WHERE account_id = $1 AND pet_id = $2 AND NOT complete", store.AccountID, petID).Scan(&id))
	return &Write{Pet: petID, Order: id, Decide: func(s *State) (Response, error) {
		pet, _ := s.Pets.Get(petID)
		current, known := s.Orders.Get(id)
		switch {
		case !known || current.Complete:
			return Response{}, pgx.ErrNoRows
		case complete:
			current.Complete = true
			pet.Stock = pet.Stock.Complete(current.Quantity)
			s.Orders.Set(current)
		default:
			pet.Stock = pet.Stock.Cancel(current.Quantity)
			s.Orders.Delete(id)
		}
		s.Pets.Set(pet)
		return Response{Status: 200, Body: fmt.Append(nil, pet.Stock)}, nil
	}}
}

// TestGroupEqualsSequence: the writes of a group have the same responses, effects and events as
// the writes of each store one after the other.
func TestGroupEqualsSequence(t *testing.T) {
	t.Parallel()
	for what, test := range map[string]struct {
		kind   groupKind
		stores []Store
	}{
		"of a store":        {ownGroup, []Store{one}},
		"of several stores": {commonGroup, []Store{two, one, sandbox}}, // not in the order of their ids
	} {
		t.Run(what, func(t *testing.T) {
			t.Parallel()
			if test.kind == commonGroup {
				pgtest.Not(t, pgtest.Citus, "it has no such groups")
			}
			const rounds, most = 60, 12
			f := newFixture(t)
			f.newSandbox()
			f.newStores(4, 5, 6)
			f.exec("UPDATE inventory SET quantity = 10")
			inSequence := map[Store]Store{one: {AccountID: 4}, two: {AccountID: 5}, sandbox: {AccountID: 6}}
			for round := range rounds {
				random := rand.New(rand.NewPCG(uint64(round), 1))
				var together, inTurn []storeWrite
				for range 1 + random.IntN(most) {
					store, petID, quantity, kind := test.stores[random.IntN(len(test.stores))], 1+random.Int64N(4), random.Int64N(8), random.IntN(8)
					for of, writes := range map[Store]*[]storeWrite{store: &together, inSequence[store]: &inTurn} {
						w := order(petID, 1+quantity)
						switch {
						case (kind == 1 || kind == 2) && test.kind == ownGroup: // others read and change no orders
							w = f.closeOrder(of, petID, kind == 1)
						case kind <= 2:
							w = restock(petID, quantity)
						}
						*writes = append(*writes, storeWrite{of, emits(w)})
					}
				}
				got := need.Value(f.run(t.Context(), newGroup(test.kind, together...)))(t)
				for i, w := range inTurn {
					want, err := f.Do(t.Context(), w.Store, w.Write)
					if errors.Is(got[i].err, errNotLocked) { // names a row that does not exist
						got[i].Result, got[i].err = f.Do(t.Context(), together[i].Store, together[i].Write)
					}
					if diff := cmp.Diff(want, got[i].Result); diff != "" || !errors.Is(got[i].err, err) {
						t.Errorf("round %d, write %d: %v in sequence, %v in a group\n%s", round, i, err, got[i].err, diff)
					}
				}
				for store, other := range inSequence {
					if diff := cmp.Diff(append(f.stored(other), f.feed(other)...), append(f.stored(store), f.feed(store)...)); diff != "" {
						t.Fatalf("round %d: in sequence (-), in a group (+)\n%s", round, diff)
					}
				}
			}
		})
	}
}

// TestWritesThatLeaveTheGroup: a group decides only about writes whose rows and keys it
// has locked.
func TestWritesThatLeaveTheGroup(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	tx := pgtest.Begin(t, f.database.Pool)
	pgtest.Exec(t, tx, "SELECT FROM inventory WHERE account_id = 1 AND pet_id = 1 FOR UPDATE")
	pgtest.Exec(t, tx, "SELECT pg_advisory_xact_lock(hashtextextended('idempotency held', 1)) FROM account_state WHERE account_id = 1")
	decided := need.Value(f.group(one, order(1, 1), order(2, 1), order(9, 1), under("held", order(2, 1)), under("twins", order(3, 1)), under("twins", order(3, 1))))(t)
	for i, want := range []error{errNotLocked, nil, errNotLocked, ErrKeyInUse, nil, errTwin} {
		if !errors.Is(decided[i].err, want) {
			t.Errorf("write %d: %v, want %v", i, decided[i].err, want)
		}
	}
	want := []string{
		"order of pet 2: 1, f", "order of pet 3: 1, f",
		"pet 1 available: 10 in stock, 0 held", "pet 2 available: 9 in stock, 1 held", "pet 3 available: 9 in stock, 1 held", "pet 4 available: 10 in stock, 0 held",
	}
	need.Same(t, want, f.stored(one), "the store")

	// many writes that wait for a row do not hold up others, nor do they wait for a key
	const waiting = 10
	var waited sync.WaitGroup
	for range waiting {
		waited.Go(func() {
			if _, err := f.Do(t.Context(), one, order(1, 1)); err != nil {
				t.Errorf("after waiting for the row: %v", err)
			}
		})
	}
	f.awaitLockWaiter()
	for what, other := range map[string]struct {
		write *Write
		err   error
	}{
		"an order of another pet":            {order(4, 1), nil},
		"an order of an unknown pet":         {order(9, 1), pgx.ErrNoRows},
		"with a key in use":                  {under("held", order(2, 1)), ErrKeyInUse},
		"with a key in use, of a locked pet": {under("held", order(1, 1)), ErrKeyInUse},
		"a replay that names a locked pet":   {under("twins", order(1, 1)), nil},
	} {
		if _, err := f.Do(t.Context(), one, other.write); !errors.Is(err, other.err) {
			t.Errorf("beside writes that wait, %s: %v, want %v", what, err, other.err)
		}
	}
	pgtest.Rollback(t, tx)
	waited.Wait()
}

// TestWaitingTogether: writes wait in one group only for the same rows. The lock of a category that
// one waits for does not fail another.
func TestWaitingTogether(t *testing.T) {
	t.Parallel()
	sandbox := Store{AccountID: 3, Sandbox: true}
	for _, test := range []struct {
		store    Store
		together bool
		one, two Write
	}{
		{one, true, Write{Pet: 1}, Write{Pet: 1, Creates: account.Orders}},
		{one, false, Write{Pet: 1}, Write{Pet: 2}},
		{one, false, Write{Pet: 1}, Write{Pet: 1, Category: 2}},
		{one, false, Write{Category: 1}, Write{Category: 2}},
		{sandbox, true, Write{Pet: 1}, Write{Category: 2}},
	} {
		if together := (storeWrite{test.store, &test.one}).rows() == (storeWrite{test.store, &test.two}).rows(); together != test.together {
			t.Errorf("%+v and %+v of %+v wait together: %t", test.one, test.two, test.store, together)
		}
	}
}

// TestFailingWriteFailsAlone: a write that spoils the state or panics fails with its own error,
// and leaves the connection in order.
func TestFailingWriteFailsAlone(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	f.exec("UPDATE inventory SET quantity = 1000")
	spoils := &Write{Pet: 2, Decide: func(s *State) (Response, error) {
		pet, _ := s.Pets.Get(2)
		pet.Stock.Quantity = 7
		s.Pets.Set(pet)
		return Response{}, errors.ErrUnsupported
	}}
	for range 2 { // in a common group, and in one of its store
		if _, err := f.Do(t.Context(), one, spoils); !errors.Is(err, errors.ErrUnsupported) {
			t.Errorf("a write that changes the state and fails: %v", err)
		}
		f.apart.excludeHeld(one.AccountID, time.Hour)
	}
	panics := &Write{Pet: 3, Decide: func(*State) (Response, error) { panic("a bug") }}
	for range 20 { // more than connections
		if _, err := f.Do(t.Context(), one, panics); err == nil || !strings.Contains(err.Error(), "a bug") {
			t.Fatalf("a panic: %v", err)
		}
		need.Value(f.Do(t.Context(), one, order(3, 1)))(t)
	}
	invalid := change(Write{Pet: 1, Creates: account.Orders}, func(s *State) { s.Orders.Create(db.Order{PetID: 1, Quantity: -1}) })
	if _, err := f.group(one, order(2, 1), invalid); !postgres.RolledBack(err) {
		t.Errorf("a group with an invalid order: %v", err)
	}
	const others = 20
	var group sync.WaitGroup
	for range others {
		group.Go(func() {
			if _, err := f.Do(t.Context(), one, order(2, 1)); err != nil {
				t.Error(err)
			}
		})
		group.Go(func() {
			if _, err := f.Do(t.Context(), one, invalid); !postgres.RolledBack(err) {
				t.Errorf("an invalid order: %v", err)
			}
		})
	}
	group.Wait()
	for _, want := range []string{"pet 2 available: 980 in stock, 20 held", "pet 3 available: 980 in stock, 20 held"} {
		if stored := f.stored(one); !slices.Contains(stored, want) {
			t.Errorf("the store has no %s: %q", want, stored)
		}
	}
}

// TestKeys: a stored response is replayed until it expires or the store is reset.
func TestKeys(t *testing.T) {
	t.Parallel()
	f := newFixture(t)
	place := func(fingerprint string) (Result, error) {
		w := under("key", order(1, 1))
		w.Key.Fingerprint = []byte(strings.Repeat(fingerprint, 32))
		return f.Do(t.Context(), one, w)
	}
	for _, step := range []struct {
		before      string // SQL
		fingerprint string
		replayed    bool
		left        stock.State // according to the response
		err         error
	}{
		{"", "f", false, stock.State{Quantity: 9, Held: 1, Status: stock.Available}, nil},
		{"", "f", true, stock.State{Quantity: 9, Held: 1, Status: stock.Available}, nil},
		{"", "g", false, stock.State{}, ErrKeyReused},
		{"UPDATE idempotency_keys SET created_at = now() - interval '24 hours'", "g", false, stock.State{Quantity: 8, Held: 2, Status: stock.Available}, nil},
		{"", "g", true, stock.State{Quantity: 8, Held: 2, Status: stock.Available}, nil},
		{"UPDATE account_state SET reset_at = statement_timestamp()", "h", false, stock.State{Quantity: 7, Held: 3, Status: stock.Available}, nil},
		{"", "h", true, stock.State{Quantity: 7, Held: 3, Status: stock.Available}, nil},
	} {
		if step.before != "" {
			f.exec(step.before)
		}
		got, err := place(step.fingerprint)
		body := ""
		if step.err == nil {
			body = fmt.Sprint(step.left)
		}
		if !errors.Is(err, step.err) || got.Replayed != step.replayed || string(got.Body) != body {
			t.Errorf("after %q: %s, replayed %t, %v; want %+v", step.before, got.Body, got.Replayed, err, step)
		}
	}
}

// TestStatementsKeepTheirPlan: PostgreSQL plans each statement of a group at most five
// times for a connection, and then keeps a generic plan. Planning takes longer than
// most of the statements.
func TestStatementsKeepTheirPlan(t *testing.T) {
	t.Parallel()
	pgtest.Not(t, pgtest.Citus, "the coordinator chooses the shard again each time")
	const writes, most = 30, 5
	f := newFixture(t)
	f.exec(`
		INSERT INTO pets (account_id, id, category_id, name, name_key, status)
			SELECT account_id, id, 1, 'Rex', 'rex', 'available' FROM generate_series(1, 2) AS account_id, generate_series(5, 1000) AS id;
		INSERT INTO inventory (account_id, pet_id, quantity) SELECT account_id, id, 10 FROM pets WHERE id > 4;
		UPDATE inventory SET held = 1;
		INSERT INTO orders (account_id, id, pet_id, quantity) SELECT account_id, id, id, 1 FROM pets;
		ANALYZE`)
	pool := pgtest.Open(t, f.database.DirectURL, 1)
	f.Committer = newCommitter(pool)
	for i := range writes {
		n := int64(10 + i)
		placed := under(fmt.Sprint("key ", i), order(n, 10)) // also changes the status
		created := change(Write{Category: 1, Creates: account.Pets}, func(s *State) {
			s.Pets.Create(Pet{CategoryID: 1, Name: "Rex", NameKey: "rex", Stock: stock.State{Status: stock.Available}})
		})
		run := func(w *Write) {
			need.Value(f.Do(t.Context(), one, w))(t)
		}
		run(placed)
		run(created)
		run(send("hello"))
		run(f.closeOrder(one, n, true))
		run(f.closeOrder(one, n, false))
		run(restock(n, 3))
		f.exec(fmt.Sprint("DELETE FROM orders WHERE pet_id = ", n))
		run(change(Write{Pet: n, Alone: true}, func(s *State) { s.Pets.Delete(n) }))
	}
	rows := need.Value(pool.Query(t.Context(), "SELECT split_part(statement, ' ', 3), custom_plans FROM pg_prepared_statements WHERE custom_plans + generic_plans > 5"))(t)
	plans := map[string]int{}
	var name string
	var custom int
	need.Value(pgx.ForEachRow(rows, []any{&name, &custom}, func() error { plans[name] = custom; return nil }))(t)
	t.Log(plans)
	if len(plans) < 10 {
		t.Errorf("only %d statements ran more than five times: %v", len(plans), plans)
	}
	for name, custom := range plans {
		if custom > most {
			t.Errorf("PostgreSQL planned %s %d times", name, custom)
		}
	}
}

// TestPlansOfEmptyTables: PostgreSQL may plan the statements while the tables are empty,
// and keeps the plan when they have grown. So it must look up rows by their key.
func TestPlansOfEmptyTables(t *testing.T) {
	t.Parallel()
	pgtest.Not(t, pgtest.Citus, "it cannot make generic plans of joins, and its workers plan each run")
	f := newFixture(t)
	f.exec("DELETE FROM inventory; DELETE FROM pets; DELETE FROM categories")
	f.exec("VACUUM ANALYZE") // PostgreSQL now knows that they are empty
	generated := need.Value(os.ReadFile("../../db/batch.go"))(t)
	conn := need.Value(f.db.Pool().Acquire(t.Context()))(t)
	defer conn.Release()
	pgtest.Exec(t, conn, "SET plan_cache_mode = force_generic_plan")
	queries := regexp.MustCompile("(?s)= `(-- name: (\\w+) .*?)`").FindAllStringSubmatch(string(generated), -1)
	if len(queries) < 20 {
		t.Fatalf("only %d queries in db/batch.go", len(queries))
	}
	for _, query := range queries {
		name := query[2]
		prepared, err := conn.Conn().Prepare(t.Context(), name, query[1])
		if err != nil {
			t.Fatalf("%s: %v", name, err)
		}
		arguments := strings.TrimSuffix(strings.Repeat("NULL, ", len(prepared.ParamOIDs)), ", ")
		explain := fmt.Sprintf("EXPLAIN EXECUTE %s(%s)", pgx.Identifier{name}.Sanitize(), arguments)
		plan := strings.Join(pgtest.List[string](t, conn, explain, pgx.QueryExecModeSimpleProtocol), "\n")
		for _, scan := range []string{"Seq Scan on", "Hash Join", "Merge Join"} {
			if strings.Contains(plan, scan) {
				t.Errorf("%s has a %s:\n%s", name, scan, plan)
			}
		}
	}
}

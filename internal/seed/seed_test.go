package seed_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"
	"unicode"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"petstore/db"
	"petstore/internal/account"
	"petstore/internal/casefold"
	"petstore/internal/pgtest"
	"petstore/internal/seed"
	"petstore/internal/tools/need"
)

// TestLoadHasTheDataThatSamplesUse: the code samples of the API reference rely on
// this for every number of pets.
func TestLoadHasTheDataThatSamplesUse(t *testing.T) {
	t.Parallel()
	for _, pets := range []int{1, 2, 3, 1000} {
		t.Run(fmt.Sprint(pets, " pets"), func(t *testing.T) {
			t.Parallel()
			pool := loaded(t, pets)

			type numbers struct{ Pets, MaxPet, Inventory, MaxInventory, Orders, MaxOrder int }
			got := queryOne[numbers](t, pool, `
				SELECT (SELECT count(*) FROM pets) AS pets, (SELECT max(id) FROM pets) AS max_pet,
				       (SELECT count(*) FROM inventory) AS inventory, (SELECT max(pet_id) FROM inventory) AS max_inventory,
				       (SELECT count(*) FROM orders) AS orders, (SELECT max(id) FROM orders) AS max_order`)
			need.Same(t, numbers{pets, pets, pets, pets, pets, pets}, got, "rows and highest ids")

			first := query(t, pool, "SELECT id || ' ' || name FROM categories ORDER BY id LIMIT 3", pgx.RowTo[string])
			need.Same(t, []string{"1 Dogs", "2 Cats", "3 Birds"}, first, "first categories")

			type pet struct {
				CategoryID   int
				Name, Status string
				Quantity     int
			}
			one := queryOne[pet](t, pool, `
				SELECT category_id, name, status, quantity
				FROM pets JOIN inventory ON inventory.account_id = pets.account_id AND pet_id = id
				WHERE id = 1`)
			need.Same(t, pet{1, "Rex", "available", 100}, one, "pet 1")

			type order struct {
				PetID    int
				Complete bool
			}
			need.Same(t, order{min(2, pets), false}, queryOne[order](t, pool, "SELECT pet_id, complete FROM orders WHERE id = 1"), "order 1")
			if pets >= 2 && !queryOne[order](t, pool, "SELECT pet_id, complete FROM orders WHERE id = 2").Complete {
				t.Error("order 2 is not complete")
			}
		})
	}
}

// TestLoadIsConsistent: the API can only produce these combinations of status and
// stock (guide Stock and states).
func TestLoadIsConsistent(t *testing.T) {
	t.Parallel()
	pool := loaded(t, 2000)
	type pet struct {
		ID       int
		Status   string
		Quantity int
		Held     int
		Open     int
	}
	seen := map[string]int{}
	for _, p := range query(t, pool, `
		SELECT pets.id, status, inventory.quantity, held, coalesce(sum(orders.quantity) FILTER (WHERE NOT complete), 0)::bigint AS open
		FROM pets
		JOIN inventory ON inventory.account_id = pets.account_id AND inventory.pet_id = pets.id
		LEFT JOIN orders ON orders.account_id = pets.account_id AND orders.pet_id = pets.id
		GROUP BY pets.account_id, pets.id, inventory.account_id, inventory.pet_id`, pgx.RowToStructByName[pet]) {
		seen[p.Status]++
		if p.Held != p.Open {
			t.Errorf("pet %d: %d units are held, but its open orders have %d", p.ID, p.Held, p.Open)
		}
		var want string
		switch {
		case p.Quantity > 0:
			want = "available"
		case p.Held > 0:
			want = "pending"
		default:
			want = "sold"
		}
		if p.Status != want {
			t.Errorf("pet %d is %s with %d units in stock and %d held, want %s", p.ID, p.Status, p.Quantity, p.Held, want)
		}
	}
	for _, status := range []string{"available", "pending", "sold"} {
		if seen[status] < 50 {
			t.Errorf("%d of 2000 pets are %s, want at least 50", seen[status], status)
		}
	}
}

// TestLoadCreatesValidNames: the names are valid and varied.
func TestLoadCreatesValidNames(t *testing.T) {
	t.Parallel()
	pool := loaded(t, 2000)
	type named struct{ Name, NameKey string }
	names := query(t, pool, "SELECT name, name_key FROM pets UNION SELECT name, name_key FROM categories", pgx.RowToStructByName[named])
	if len(names) < 1200 {
		t.Errorf("2000 pets and their categories have %d names, want at least 1200", len(names))
	}
	for _, n := range names {
		need.Same(t, casefold.Key(n.Name), n.NameKey, "the key of %q", n.Name)
		for _, r := range n.Name {
			if unicode.IsControl(r) || r == unicode.ReplacementChar {
				t.Errorf("%q has the character %U", n.Name, r)
			}
		}
	}
}

func TestLoadIsDeterministic(t *testing.T) {
	t.Parallel()
	const fingerprint = `
		SELECT (SELECT md5(string_agg(c::text, E'\n' ORDER BY id))     FROM categories AS c),
		       (SELECT md5(string_agg(p::text, E'\n' ORDER BY id))     FROM pets AS p),
		       (SELECT md5(string_agg(i::text, E'\n' ORDER BY pet_id)) FROM inventory AS i),
		       (SELECT md5(string_agg(o::text, E'\n' ORDER BY id))     FROM orders AS o)`
	type sums struct{ Categories, Pets, Inventory, Orders string }
	a := query(t, loaded(t, 500), fingerprint, pgx.RowToStructByPos[sums])
	b := query(t, loaded(t, 500), fingerprint, pgx.RowToStructByPos[sums])
	need.Same(t, a, b, "two loads of the same size differ (want: first, got: second)")
}

// TestNewIDsFollowTheSample: ids up to 1000 are for sample data, so new rows have ids
// beyond them, and beyond the ids of a larger sample.
func TestNewIDsFollowTheSample(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ pets, want int }{{100, 1001}, {1000, 1001}, {1500, 1501}} {
		pool := loaded(t, tt.pets)
		for _, insert := range []struct {
			sql  string
			want int
		}{
			{"INSERT INTO categories (account_id, name, name_key) SELECT id, 'Reptiles', 'reptiles' FROM accounts RETURNING id", 1001},
			{"INSERT INTO pets (account_id, category_id, name, name_key) SELECT id, 1, 'Fido', 'fido' FROM accounts RETURNING id", tt.want},
			{"INSERT INTO orders (account_id, pet_id, quantity) SELECT id, 1, 1 FROM accounts RETURNING id", tt.want},
		} {
			if got := query(t, pool, insert.sql, pgx.RowTo[int])[0]; got != insert.want {
				t.Errorf("%d pets: %s: %d, want %d", tt.pets, insert.sql, got, insert.want)
			}
		}
	}
}

// TestLoadIntoTwoAccounts: every account has its own sample, with the same ids.
func TestLoadIntoTwoAccounts(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	other := s.newAccount(t, "other")
	for _, id := range []int64{s.account, other} {
		need.OK(t, seed.Load(t.Context(), s.pool, id, 1200, nil))
	}
	type ids struct{ Account, First, Thousandth, Rows int64 }
	got := query(t, s.pool, `
		SELECT account_id, min(id), count(*) FILTER (WHERE id <= 1000), count(*)
		FROM pets
		GROUP BY account_id
		ORDER BY account_id`, pgx.RowToStructByPos[ids])
	need.Same(t, []ids{{s.account, 1, 1000, 1200}, {other, 1, 1000, 1200}}, got, "pets of each account")
}

// TestLoadAnalyzes: without statistics the first query plans would be bad.
func TestLoadAnalyzes(t *testing.T) {
	t.Parallel()
	pgtest.Not(t, pgtest.Citus, "the statistics are on the workers")
	got := query(t, loaded(t, 100), `
		SELECT DISTINCT tablename::text
		FROM pg_stats
		WHERE tablename IN ('categories', 'pets', 'inventory', 'orders')
		ORDER BY tablename`, pgx.RowTo[string])
	need.Same(t, []string{"categories", "inventory", "orders", "pets"}, got, "tables with statistics")
}

func TestLoadFailsIfNotEmpty(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	query(t, s.pool, "INSERT INTO categories (account_id, name, name_key) SELECT id, 'Dogs', 'dogs' FROM accounts RETURNING id", pgx.RowTo[int])
	if err := seed.Load(t.Context(), s.pool, s.account, 10, nil); !errors.Is(err, seed.ErrNotEmpty) {
		t.Errorf("Load = %v, want ErrNotEmpty", err)
	}
	wantRows(t, s.pool, 1)
}

// TestLoadFailsIfClosed: a deleted account gets no data that nobody would delete.
func TestLoadFailsIfClosed(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	query(t, s.pool, "UPDATE account_state SET closed = true RETURNING account_id", pgx.RowTo[int])
	if err := seed.Load(t.Context(), s.pool, s.account, 10, nil); !errors.Is(err, seed.ErrClosed) {
		t.Errorf("Load = %v, want ErrClosed", err)
	}
	wantRows(t, s.pool, 0)
}

// TestLoadConcurrently: the second of two concurrent calls waits, and then finds
// the data of the first.
func TestLoadConcurrently(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	errs := make(chan error, 2)
	for range cap(errs) {
		go func() { errs <- seed.Load(t.Context(), s.pool, s.account, 500, nil) }()
	}
	a, b := <-errs, <-errs
	if a != nil {
		a, b = b, a
	}
	if a != nil || !errors.Is(b, seed.ErrNotEmpty) {
		t.Errorf("Load = %v and %v, want nil and ErrNotEmpty", a, b)
	}
	wantRows(t, s.pool, 12+3*500)
}

func TestLoadCanceledChangesNothing(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	err := seed.Load(ctx, s.pool, s.account, 5000, func(done, total int) {
		if done > total/2 {
			cancel()
		}
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("Load = %v, want context.Canceled", err)
	}
	wantRows(t, s.pool, 0)
	if err := seed.Load(t.Context(), s.pool, s.account, 10, nil); err != nil {
		t.Errorf("Load after a canceled one: %v", err)
	}
}

// TestLoadCanceledAfterTheCommit: the statistics are left to PostgreSQL.
func TestLoadCanceledAfterTheCommit(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	loaded := make(chan error, 1)
	need.OK(t, pgx.BeginFunc(t.Context(), s.pool, func(tx pgx.Tx) error {
		if _, err := tx.Exec(t.Context(), "LOCK TABLE categories IN SHARE UPDATE EXCLUSIVE MODE"); err != nil {
			return err
		}
		go func() { loaded <- seed.Load(ctx, s.pool, s.account, 10, nil) }()
		if err := pgtest.AwaitLockWaiters(t.Context(), s.pool, 1); err != nil { // VACUUM
			return err
		}
		cancel()
		return <-loaded
	}))
	wantRows(t, s.pool, 12+3*10)
}

// TestLoadIsNotLimitedByThePool: the pool of the API cancels a statement after a
// few seconds. A large load takes longer.
func TestLoadIsNotLimitedByThePool(t *testing.T) {
	t.Parallel()
	s := newStore(t)
	config := s.pool.Config()
	config.ConnConfig.RuntimeParams["statement_timeout"] = "1s"
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	need.OK(t, err)
	t.Cleanup(pool.Close)
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	loaded := make(chan error, 1)
	err = pgx.BeginFunc(ctx, s.pool, func(tx pgx.Tx) error {
		if err := db.New(tx).StoreLock(t.Context(), s.account); err != nil {
			return err
		}
		go func() { loaded <- seed.Load(t.Context(), pool, s.account, 10, nil) }()
		if err := pgtest.AwaitLockWaiters(ctx, s.pool, 1); err != nil {
			return err
		}
		_, err := tx.Exec(t.Context(), "SELECT pg_sleep(1.1)") // the other statement takes longer
		return err
	})
	need.OK(t, err)
	if err := <-loaded; err != nil {
		t.Fatal(err)
	}
	if got := query(t, pool, "SHOW statement_timeout", pgx.RowTo[string])[0]; got != "1s" {
		t.Errorf("a connection of the pool has statement_timeout %s afterwards", got)
	}
}

// loaded returns a pool of a database with the given number of pets.
func loaded(t *testing.T, pets int) *pgxpool.Pool {
	t.Helper()
	s := newStore(t)
	need.OK(t, seed.Load(t.Context(), s.pool, s.account, pets, nil))
	return s.pool
}

// store is the empty store of an account in a database of the test's own.
type store struct {
	pool    *pgxpool.Pool
	account int64
}

func newStore(t *testing.T) store {
	t.Helper()
	s := store{pool: pgtest.New(t).Pool}
	s.account = s.newAccount(t, "acme")
	return s
}

func (s store) newAccount(t *testing.T, name string) int64 {
	t.Helper()
	row := need.Value(account.Ensure(t.Context(), db.New(s.pool), name))(t)
	return row.ID
}

// wantRows checks the total number of rows of all tables that Load fills.
func wantRows(t *testing.T, pool *pgxpool.Pool, want int) {
	t.Helper()
	got := query(t, pool, `
		SELECT (SELECT count(*) FROM categories) + (SELECT count(*) FROM pets)
		     + (SELECT count(*) FROM inventory) + (SELECT count(*) FROM orders)`, pgx.RowTo[int])[0]
	if got != want {
		t.Errorf("%d rows, want %d", got, want)
	}
}

func query[T any](t *testing.T, pool *pgxpool.Pool, sql string, to pgx.RowToFunc[T]) []T {
	t.Helper()
	rows := need.Value(pool.Query(t.Context(), sql))(t)
	all := need.Value(pgx.CollectRows(rows, to))(t)
	return all
}

func queryOne[T any](t *testing.T, pool *pgxpool.Pool, sql string) T {
	t.Helper()
	rows := need.Value(pool.Query(t.Context(), sql))(t)
	one := need.Value(pgx.CollectExactlyOneRow(rows, pgx.RowToStructByName[T]))(t)
	return one
}

package main

import (
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"petstore/db"
	"petstore/internal/account"
	"petstore/internal/pgtest"
	"petstore/internal/seed"
)

// newStore returns a database with a store of three pets in the first account, and a pet of
// another account.
func newStore(t *testing.T) *pgxpool.Pool {
	t.Helper()
	pool := pgtest.New(t).Pool
	owner, err := account.Ensure(t.Context(), db.New(pool), benchAccount)
	if err != nil {
		t.Fatal(err)
	}
	if err := seed.Load(t.Context(), pool, owner.ID, 3, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := addSmallAccounts(t.Context(), pool, 1); err != nil {
		t.Fatal(err)
	}
	return pool
}

// scan runs a query that returns one row.
func scan(t *testing.T, pool *pgxpool.Pool, query string, into ...any) {
	t.Helper()
	if err := pool.QueryRow(t.Context(), query).Scan(into...); err != nil {
		t.Fatalf("%s: %v", query, err)
	}
}

// TestPlainTables checks that the plain handler gets the same pets, with indexes for
// its keys only.
func TestPlainTables(t *testing.T) {
	t.Parallel()
	pgtest.Not(t, pgtest.Citus, "the benchmark compares with a single server")
	pool := newStore(t)
	var stock, units int
	scan(t, pool, "SELECT sum(quantity) FROM inventory JOIN accounts ON accounts.id = account_id WHERE name = '"+benchAccount+"'", &stock)
	if _, err := pool.Exec(t.Context(), replaceSchema); err != nil {
		t.Fatal(err)
	}
	var pets, entries, orders, indexes, newPet int
	scan(t, pool, "SELECT (SELECT count(*) FROM pets), (SELECT count(*) FROM inventory), (SELECT sum(quantity) FROM inventory), (SELECT count(*) FROM orders)",
		&pets, &entries, &units, &orders)
	if pets != 3 || entries != 3 || orders != 3 || units != stock {
		t.Errorf("%d pets, %d entries with %d units, %d orders; want 3, 3 with %d, 3", pets, entries, units, orders, stock)
	}
	scan(t, pool, "SELECT count(*) FROM pg_indexes WHERE schemaname NOT IN ('pg_catalog', 'pg_toast')", &indexes)
	if indexes != 4 {
		t.Errorf("%d indexes, want the primary keys of four tables", indexes)
	}
	scan(t, pool, "INSERT INTO pets (name, category_id) VALUES ('Igor', 1) RETURNING id", &newPet)
	if newPet <= pets {
		t.Errorf("a new pet has the id %d of another pet", newPet)
	}
}

// TestPgbenchOrder checks that the script of pgbench places an order on the tables of
// Petstore.
func TestPgbenchOrder(t *testing.T) {
	t.Parallel()
	pgtest.Not(t, pgtest.Citus, "the benchmark compares with a single server")
	pool := newStore(t)
	_, statement, found := strings.Cut(string(orderScript), "random(1, :pets)\n")
	if !found {
		t.Fatal("the script draws no pet")
	}
	var order int64
	var known bool
	var shipDate *time.Time
	var status *string
	for _, pet := range []string{"1", "99"} {
		scan(t, pool, strings.ReplaceAll(statement, ":pet", pet), &order, &shipDate, &known, &status)
		if placed := pet == "1"; (order != 0) != placed || known != placed {
			t.Errorf("pet %s: order %d, pet known: %t", pet, order, known)
		}
	}
	var orders int
	scan(t, pool, "SELECT count(*) FROM orders", &orders)
	if orders != 4 {
		t.Errorf("%d orders, want 4", orders)
	}
}

// Package sampledata fills an empty database with a pet shop that looks like a
// real one: for a developer's first minutes, for tests of the documentation and
// for benchmarks.
package sampledata

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// MaxPets is the largest shop that [Load] makes.
const MaxPets = 10_000_000

// ErrNotEmpty is returned by [Load] for a database that is in use.
var ErrNotEmpty = errors.New("the database must be empty, but has categories or pets")

const (
	// progressInterval is how many rows are copied between two reports.
	progressInterval = 1000
	closeTimeout     = time.Second
)

// Load fills a migrated database with the given number of pets, 1 to [MaxPets],
// as many orders, and a dozen categories, in one transaction: after an error
// there is nothing of it. It returns [ErrNotEmpty] when there are categories or
// pets already. Writes to the shop wait while it runs.
//
// The same number of pets gives the same data, which keeps section 4 of the
// contract: an available pet has units in stock, a pending one has units held
// by open orders alone, a sold one has neither, and what is held is the sum of
// the open orders. The code samples of the description rely on this much:
//
//   - categories 1, 2 and 3 are Dogs, Cats and Birds;
//   - pets have the ids 1 to pets without a gap, and so have orders;
//   - pet 1 is available with 100 units;
//   - order 1 is open and, where there are two pets, is of pet 2;
//   - order 2, where there are two pets, is complete.
//
// progress, which may be nil, is called with the rows copied so far and in all,
// from one goroutine at a time. At the end the tables are vacuumed and analyzed,
// so that plans are right at once; an error of that says that the data is there.
//
// Load takes one connection out of the pool, which limits statements to less
// time than this takes, and closes it afterwards. It keeps four bytes in memory
// for each pet.
func Load(ctx context.Context, pool *pgxpool.Pool, pets int, progress func(done, total int)) error {
	if pets < 1 || pets > MaxPets {
		return fmt.Errorf("the number of pets must be 1 to %d, not %d", MaxPets, pets)
	}
	pooled, err := pool.Acquire(ctx)
	if err != nil {
		return fmt.Errorf("loading sample data: %w", err)
	}
	conn := pooled.Hijack()
	defer func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), closeTimeout)
		defer cancel()
		_ = conn.Close(ctx) // all it had to do is done or reported
	}()
	if _, err := conn.Exec(ctx, "SET statement_timeout = 0; SET lock_timeout = 0"); err != nil {
		return fmt.Errorf("loading sample data: %w", err)
	}
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error { return load(ctx, tx, pets, progress) })
	switch {
	case err != nil && ctx.Err() != nil:
		// A COPY that is cancelled fails with what became of its connection.
		return fmt.Errorf("loading sample data: %w", context.Cause(ctx))
	case err != nil:
		return fmt.Errorf("loading sample data: %w", err)
	}
	if _, err := conn.Exec(ctx, "VACUUM (ANALYZE) categories, pets, inventory, orders"); err != nil {
		return fmt.Errorf("analyzing the sample data, which is loaded: %w", err)
	}
	return nil
}

func load(ctx context.Context, tx pgx.Tx, pets int, progress func(done, total int)) error {
	// The ids are ours, so nobody else may be given one of them meanwhile.
	if _, err := tx.Exec(ctx, "LOCK TABLE categories, pets IN SHARE ROW EXCLUSIVE MODE"); err != nil {
		return err
	}
	var empty bool
	err := tx.QueryRow(ctx, "SELECT NOT EXISTS (SELECT FROM categories) AND NOT EXISTS (SELECT FROM pets)").Scan(&empty)
	if err != nil {
		return err
	}
	if !empty {
		return ErrNotEmpty
	}

	c := &copier{tx: tx, total: len(categories) + 3*pets, progress: progress}
	held := heldByPet(pets)
	if err := copyAll(ctx, c, "categories", allCategories(),
		[]string{"id", "name", "name_key", "description"}, category.row); err != nil {
		return err
	}
	if err := copyAll(ctx, c, "pets", allPets(held),
		[]string{"id", "category_id", "name", "name_key", "status"}, pet.row); err != nil {
		return err
	}
	if err := copyAll(ctx, c, "inventory", allPets(held),
		[]string{"pet_id", "quantity", "held"}, pet.inventoryRow); err != nil {
		return err
	}
	if err := copyAll(ctx, c, "orders", allOrders(pets),
		[]string{"id", "pet_id", "quantity", "ship_date", "complete"}, order.row); err != nil {
		return err
	}

	// COPY takes ids as they are, and the sequences know nothing of them.
	_, err = tx.Exec(ctx, `
		SELECT setval(pg_get_serial_sequence('categories', 'id'), $1),
		       setval(pg_get_serial_sequence('pets', 'id'), $2),
		       setval(pg_get_serial_sequence('orders', 'id'), $2)`, len(categories), pets)
	return err
}

// copier counts the rows that go into a transaction.
type copier struct {
	tx          pgx.Tx
	done, total int
	progress    func(done, total int)
}

// copyAll streams items into a table.
func copyAll[T any](ctx context.Context, c *copier, table string, items iter.Seq[T], columns []string, row func(T) []any) error {
	next, stop := iter.Pull(items)
	defer stop()
	_, err := c.tx.CopyFrom(ctx, pgx.Identifier{table}, columns, pgx.CopyFromFunc(func() ([]any, error) {
		item, ok := next()
		if !ok {
			return nil, nil
		}
		c.count()
		return row(item), nil
	}))
	return err
}

func (c *copier) count() {
	c.done++
	if c.progress != nil && (c.done%progressInterval == 0 || c.done == c.total) {
		c.progress(c.done, c.total)
	}
}

// Package seed fills an empty database with sample data that resembles a real pet
// shop. The dev and seed commands, the tests of the documentation and the benchmarks
// use it.
package seed

import (
	"context"
	"errors"
	"fmt"
	"iter"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// MaxPets is the maximum number of pets that [Load] creates.
const MaxPets = 10_000_000

// ErrNotEmpty is returned by [Load] if the database has categories or pets.
var ErrNotEmpty = errors.New("the database must be empty, but has categories or pets")

const (
	// progressInterval is the number of rows between two calls of progress.
	progressInterval = 1000
	closeTimeout     = time.Second
)

// Load fills a migrated database with the given number of pets, 1 to [MaxPets],
// the same number of orders, and 12 categories. It does so in one transaction, so it
// changes nothing if it fails. It returns [ErrNotEmpty] if there are categories or
// pets already. Writes to these tables wait while it runs.
//
// The same number of pets always gives the same data. The data follows the rules of
// the API reference, Stock and states: an available pet has units in stock, a pending
// pet has no units except those held by open orders, and a sold pet has neither. The
// code samples of the API reference rely on this:
//
//   - categories 1, 2 and 3 are Dogs, Cats and Birds;
//   - the ids of pets are 1 to pets without gaps, and so are the ids of orders;
//   - pet 1 is available with 100 units;
//   - order 1 is open and, if there are at least two pets, is for pet 2;
//   - order 2, if there are at least two pets, is complete.
//
// Load calls progress, which may be nil, with the number of rows copied so far and
// the total. It never calls progress concurrently. At the end it vacuums and analyzes
// the tables, so that query plans are good at once. If that fails, the error says
// that the data is loaded.
//
// Load takes one connection out of the pool, because it lifts the time limits of that
// connection, and closes it afterwards. It needs four bytes of memory for each pet.
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
		_ = conn.Close(ctx) // the work is committed, or its error is returned
	}()
	if _, err := conn.Exec(ctx, "SET statement_timeout = 0; SET lock_timeout = 0"); err != nil {
		return fmt.Errorf("loading sample data: %w", err)
	}
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error { return load(ctx, tx, pets, progress) })
	switch {
	case err != nil && ctx.Err() != nil:
		// A canceled COPY fails with an error of its connection instead of the cause.
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
	// Load chooses the ids, so no other transaction may get one of them meanwhile.
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

	// COPY with explicit ids does not advance the sequences.
	_, err = tx.Exec(ctx, `
		SELECT setval(pg_get_serial_sequence('categories', 'id'), $1),
		       setval(pg_get_serial_sequence('pets', 'id'), $2),
		       setval(pg_get_serial_sequence('orders', 'id'), $2)`, len(categories), pets)
	return err
}

// copier counts the rows that it copies in a transaction.
type copier struct {
	tx          pgx.Tx
	done, total int
	progress    func(done, total int)
}

// copyAll copies items into a table without collecting them in memory.
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

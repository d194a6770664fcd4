// Package seed fills the store of an account with sample data that resembles a real pet
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

	"petstore/db"
	"petstore/internal/casefold"
	"petstore/internal/event"
	"petstore/internal/postgres"
)

// MaxPets is the maximum number of pets for [Load], which its callers check.
const MaxPets = 10_000_000

// ShopPets is the number of pets of the sample shop, which sandboxes and petstore dev
// start with.
const ShopPets = 200

// ErrNotEmpty is returned by [Load] if the store has categories or pets.
var ErrNotEmpty = errors.New("the store of the account must be empty, but has categories or pets")

// ErrClosed is returned by [Load] if the account is deleted.
var ErrClosed = errors.New("the account is deleted; name another account")

const (
	// rowsPerCopy is the maximum number of rows in one COPY, after which Load calls
	// progress.
	rowsPerCopy  = 1000
	closeTimeout = time.Second

	// reservedIDs is the number of ids, from 1, that no sequence assigns. They are
	// for sample data, so that it has the same ids in every account.
	reservedIDs = 1000
)

// Load fills the empty store of an account with the given number of pets, 1 to
// [MaxPets], the same number of orders, and 12 categories. It does so in one
// transaction, so it changes nothing if it fails. It returns [ErrNotEmpty] if the
// account has categories or pets already, and [ErrClosed] if it is deleted.
//
// The same number of pets always gives the same data. The data follows the rules of
// the guide Stock and states: an available pet has units in stock, a pending
// pet has no units except those held by open orders, and a sold pet has neither. The
// code samples of the API reference rely on this:
//
//   - categories 1, 2 and 3 are Dogs, Cats and Birds;
//   - the ids of the first 1000 pets are 1 to 1000, and so are the ids of orders;
//   - pet 1 is available with 100 units;
//   - order 1 is open and, if there are at least two pets, is for pet 2;
//   - order 2, if there are at least two pets, is complete.
//
// Further pets and orders have new ids without gaps.
//
// Load calls progress, which may be nil, with the number of rows copied so far and
// the total. It never calls progress concurrently. At the end it vacuums and analyzes
// the tables, so that query plans are good at once. If that fails, the error says
// that the data is loaded. If ctx ends then, PostgreSQL does it later.
//
// Load takes one connection out of the pool, because it lifts the time limits of that
// connection, and closes it afterwards. Behind a connection pooler the limits stay for
// the vacuum. Load needs four bytes of memory for each pet.
func Load(ctx context.Context, pool *pgxpool.Pool, accountID int64, pets int, progress func(done, total int)) error {
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
	// A setting of the session would reach other clients of a connection pooler.
	scope := "SESSION"
	if postgres.ThroughPooler(conn) {
		scope = "LOCAL"
	}
	err = pgx.BeginFunc(ctx, conn, func(tx pgx.Tx) error {
		if _, err := tx.Exec(ctx, "SET "+scope+" statement_timeout = 0; SET "+scope+" lock_timeout = 0"); err != nil {
			return err
		}
		queries := db.New(tx)
		// A concurrent Load of the same account waits, and then finds the data.
		if err := queries.StoreLock(ctx, accountID); err != nil {
			return err
		}
		closed, err := queries.StoreIsClosed(ctx, accountID)
		if errors.Is(err, pgx.ErrNoRows) || err == nil && closed {
			return ErrClosed
		}
		if err != nil {
			return err
		}
		empty, err := queries.SampleStoreIsEmpty(ctx, accountID)
		if err != nil {
			return err
		}
		if !empty {
			return ErrNotEmpty
		}
		if err := Fill(ctx, queries, accountID, pets, progress); err != nil {
			return err
		}
		return event.Append(ctx, queries, accountID, event.Reset())
	})
	switch {
	case err != nil && ctx.Err() != nil:
		// A canceled COPY fails with an error of its connection instead of the cause.
		return fmt.Errorf("loading sample data: %w", context.Cause(ctx))
	case err != nil:
		return fmt.Errorf("loading sample data: %w", err)
	}
	if _, err := conn.Exec(ctx, "VACUUM (ANALYZE) categories, pets, inventory, orders"); err != nil && ctx.Err() == nil {
		return fmt.Errorf("analyzing the sample data, which is loaded: %w", err)
	}
	return nil
}

// Fill does what [Load] describes within the transaction of queries, for an account
// whose store is empty. It neither checks that nor analyzes the tables.
func Fill(ctx context.Context, queries *db.Queries, accountID int64, pets int, progress func(done, total int)) error {
	c := &copier{accountID: accountID, total: len(categories) + 3*pets, progress: progress}
	if err := c.reserveIDs(ctx, queries, pets); err != nil {
		return err
	}
	if err := c.copyCategories(ctx, queries); err != nil {
		return err
	}
	held := heldByPet(pets)
	if err := copyAll(ctx, c, allPets(held), pet.row, queries.SamplePets); err != nil {
		return err
	}
	if err := copyAll(ctx, c, allPets(held), pet.inventoryRow, queries.SampleInventory); err != nil {
		return err
	}
	return copyAll(ctx, c, allOrders(pets), order.row, queries.SampleOrders)
}

// copier numbers and counts the rows that it copies.
type copier struct {
	accountID int64
	// newPets and newOrders are the first ids beyond those reserved for samples.
	newPets, newOrders int64

	done, total int
	progress    func(done, total int)
}

// reserveIDs reserves the ids that the sample needs beyond those reserved for samples.
func (c *copier) reserveIDs(ctx context.Context, queries *db.Queries, pets int) (err error) {
	if pets <= reservedIDs {
		return nil
	}
	if c.newPets, err = queries.SampleReserveIDs(ctx, db.SampleReserveIDsParams{Sequence: "pets_id_seq", Number: int64(pets - reservedIDs)}); err != nil {
		return err
	}
	c.newOrders, err = queries.SampleReserveIDs(ctx, db.SampleReserveIDsParams{Sequence: "orders_id_seq", Number: int64(pets - reservedIDs)})
	return err
}

// petID returns the id of the n-th pet, from 1.
func (c *copier) petID(n int) int64 { return idOf(n, c.newPets) }

// orderID returns the id of the n-th order, from 1.
func (c *copier) orderID(n int) int64 { return idOf(n, c.newOrders) }

func idOf(n int, firstNew int64) int64 {
	if n <= reservedIDs {
		return int64(n)
	}
	return firstNew + int64(n-reservedIDs-1)
}

func (c *copier) copyCategories(ctx context.Context, queries *db.Queries) error {
	var rows []db.SampleCategoriesParams
	for i, one := range categories {
		rows = append(rows, db.SampleCategoriesParams{
			AccountID: c.accountID, ID: int64(i + 1), Name: one.name, NameKey: casefold.Key(one.name), Description: &one.description,
		})
	}
	if _, err := queries.SampleCategories(ctx, rows); err != nil {
		return err
	}
	c.copied(len(rows))
	return nil
}

// copied reports the progress after copying rows.
func (c *copier) copied(rows int) {
	c.done += rows
	if c.progress != nil {
		c.progress(c.done, c.total)
	}
}

// copyAll copies items into a table, some at a time.
func copyAll[Item, Row any](ctx context.Context, c *copier, items iter.Seq[Item], row func(Item, *copier) Row, write func(context.Context, []Row) (int64, error)) error {
	rows := make([]Row, 0, rowsPerCopy)
	flush := func() error {
		if len(rows) == 0 {
			return nil
		}
		if _, err := write(ctx, rows); err != nil {
			return err
		}
		c.copied(len(rows))
		rows = rows[:0]
		return nil
	}
	for item := range items {
		rows = append(rows, row(item, c))
		if len(rows) == rowsPerCopy {
			if err := flush(); err != nil {
				return err
			}
		}
	}
	return flush()
}

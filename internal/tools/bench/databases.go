package main

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"os"
	"strconv"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"petstore/db"
	"petstore/internal/account"
	"petstore/internal/auth"
	"petstore/internal/localpg"
	"petstore/internal/postgres"
	"petstore/internal/seed"
)

// The databases of a comparison with others. They contain the same pets, and no side pays
// for rows or indexes of another.
const (
	petstoreDatabase = "petstore"
	pgbenchDatabase  = "pgbench" // a copy of the database of Petstore
	plainDatabase    = "plain"   // with the tables of plainSchema
)

//go:embed plain/schema.sql
var plainSchema string

// startPostgres starts a cluster with fsync and synchronous_commit on, as in production. No
// checkpoint runs during a comparison, because only some of the measurements would pay for it.
func startPostgres(ctx context.Context, dir string) (*localpg.Cluster, localpg.Binaries, error) {
	binaries, err := localpg.Find(ctx, os.Getenv("PETSTORE_PG_BIN"), os.Stderr)
	if err != nil {
		return nil, binaries, err
	}
	cluster, err := localpg.Start(ctx, localpg.Options{Binaries: binaries, Dir: dir, Settings: postgresSettings})
	return cluster, binaries, err
}

var postgresSettings = map[string]string{
	"shared_buffers": "512MB", "max_wal_size": "16GB", "checkpoint_timeout": "1h", "max_connections": "200", "autovacuum": "off",
}

// prepareDatabase migrates a database, loads the sample data and creates keys of the large
// account, and one of each small account. Every pet is available and in stock.
func prepareDatabase(ctx context.Context, url string, pets int) (keys, small []string, err error) {
	if err := migrate(ctx, url); err != nil {
		return nil, nil, err
	}
	pool, err := pgxpool.New(ctx, url)
	if err != nil {
		return nil, nil, err
	}
	defer pool.Close()
	queries := db.New(pool)
	owner, err := account.Ensure(ctx, queries, benchAccount)
	if err != nil {
		return nil, nil, err
	}
	if err := seed.Load(ctx, pool, owner.ID, pets, nil); err != nil {
		return nil, nil, err
	}
	for _, statement := range []string{
		"UPDATE inventory SET quantity = " + strconv.Itoa(unitsInStock),
		"UPDATE pets SET status = 'available' WHERE status <> 'available'",
	} {
		if _, err := pool.Exec(ctx, statement); err != nil {
			return nil, nil, err
		}
	}
	for range apiKeys {
		_, secret, err := auth.Issue(ctx, queries, auth.NewKey{AccountID: owner.ID, Name: "bench", Scope: auth.Write})
		if err != nil {
			return nil, nil, err
		}
		keys = append(keys, secret.Reveal())
	}
	if small, err = addSmallAccounts(ctx, pool, smallAccounts); err != nil {
		return nil, nil, err
	}
	return keys, small, vacuum(ctx, url)
}

func migrate(ctx context.Context, url string) error {
	m, err := postgres.OpenMigrations(ctx, url)
	if err != nil {
		return err
	}
	_, err = m.Up(ctx)
	return errors.Join(err, m.Close())
}

// addSmallAccounts creates a number of small accounts with their stores, and returns a key of each.
func addSmallAccounts(ctx context.Context, pool *pgxpool.Pool, number int) (keys []string, err error) {
	err = pgx.BeginFunc(ctx, pool, func(tx pgx.Tx) error {
		queries := db.New(tx)
		var ids []int64
		for i := range number {
			owner, err := account.Ensure(ctx, queries, fmt.Sprintf("small %d", i+1))
			if err != nil {
				return err
			}
			_, secret, err := auth.Issue(ctx, queries, auth.NewKey{AccountID: owner.ID, Name: "bench", Scope: auth.Write})
			if err != nil {
				return err
			}
			ids, keys = append(ids, owner.ID), append(keys, secret.Reveal())
		}
		stores := fmt.Sprintf("unnest($1::bigint[]) AS account, generate_series(1, %d) AS pet", smallPets)
		for _, statement := range []string{
			"INSERT INTO categories (account_id, id, name, name_key) SELECT account, 1, 'Cats', 'cats' FROM unnest($1::bigint[]) AS account",
			"INSERT INTO pets (account_id, id, category_id, name, name_key) SELECT account, pet, 1, 'Pet ' || pet, 'pet ' || pet FROM " + stores,
			"INSERT INTO inventory (account_id, pet_id, quantity) SELECT account, pet, " + strconv.Itoa(unitsInStock) + " FROM " + stores,
		} {
			if _, err := tx.Exec(ctx, statement, ids); err != nil {
				return err
			}
		}
		return nil
	})
	return keys, err
}

// vacuum brings a database to the same state before every run, because autovacuum is off.
func vacuum(ctx context.Context, databaseURL string) error {
	for _, statement := range []string{"VACUUM (ANALYZE)", "CHECKPOINT"} {
		if err := execute(ctx, databaseURL, statement); err != nil {
			return err
		}
	}
	return nil
}

// addOtherDatabases creates the databases of the other sides from the database of Petstore.
func addOtherDatabases(ctx context.Context, cluster *localpg.Cluster) error {
	for _, name := range []string{pgbenchDatabase, plainDatabase} {
		if err := execute(ctx, cluster.URL("postgres"), "CREATE DATABASE "+name+" TEMPLATE "+petstoreDatabase+" STRATEGY file_copy"); err != nil {
			return err
		}
	}
	if err := execute(ctx, cluster.URL(plainDatabase), replaceSchema); err != nil {
		return fmt.Errorf("tables of the plain handler: %w", err)
	}
	return vacuum(ctx, cluster.URL(plainDatabase))
}

// replaceSchema replaces the tables of Petstore by the tables of plainSchema, with the store of
// the large account, which is the first one.
var replaceSchema = `
	ALTER SCHEMA public RENAME TO petstore;
	CREATE SCHEMA public;
	SET search_path = public;
	` + plainSchema + `
	CREATE TEMPORARY VIEW large AS SELECT min(id) AS id FROM petstore.accounts;
	INSERT INTO categories (id, name)
	SELECT categories.id, categories.name FROM petstore.categories JOIN large ON large.id = account_id ORDER BY categories.id;
	INSERT INTO pets (id, name, category_id, status)
	SELECT pets.id, pets.name, category_id, status FROM petstore.pets JOIN large ON large.id = account_id ORDER BY pets.id;
	INSERT INTO inventory (pet_id, quantity)
	SELECT pet_id, quantity FROM petstore.inventory JOIN large ON large.id = account_id ORDER BY pet_id;
	INSERT INTO orders (id, pet_id, quantity, ship_date, complete)
	SELECT orders.id, pet_id, quantity, ship_date, complete FROM petstore.orders JOIN large ON large.id = account_id ORDER BY orders.id;
	SELECT setval(pg_get_serial_sequence('pets', 'id'), max(id)) FROM pets;
	SELECT setval(pg_get_serial_sequence('orders', 'id'), max(id)) FROM orders;
	DROP SCHEMA petstore CASCADE`

// execute runs statements in a session of their own. Only a single one may have arguments.
func execute(ctx context.Context, databaseURL, statements string, args ...any) error {
	conn, err := pgx.Connect(ctx, databaseURL)
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, statements, args...)
	return errors.Join(err, conn.Close(ctx))
}

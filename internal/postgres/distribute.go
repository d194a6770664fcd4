package postgres

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/pressly/goose/v3/lock"
)

// referenceTables are the tables of which each node of a Citus cluster has a copy, each
// after those that it refers to. Every other table with a column account_id is
// distributed by that column.
var referenceTables = []string{"accounts", "api_keys"}

var (
	errNoCitus = errors.New("this database does not have the extension citus; " +
		"let a superuser run CREATE EXTENSION citus in it on every node (see docs/scaling.md)")
	errNoWorkers = errors.New("this Citus cluster has no worker; " +
		"let a superuser run SELECT citus_add_node('host', port) for each worker (see docs/scaling.md)")
	errNotMigrated = errors.New("there are no tables to distribute; run petstore migrate up first")
)

// Distribute spreads the tables over the workers of a Citus cluster, with their rows:
// accounts and api_keys become reference tables, and every table of a store is
// distributed by account_id. It does so in one transaction, which blocks all other
// statements on these tables. It reports each step with its duration. Tables that are
// distributed already stay as they are. It also suits the functions to Citus. The role must own
// the tables and the functions.
func (m *Migrations) Distribute(ctx context.Context, report func(step string, took time.Duration)) error {
	has, err := m.hasCitus(ctx)
	switch {
	case err != nil:
		return err
	case !has:
		return errNoCitus
	}
	return pgx.BeginFunc(ctx, m.pool, func(tx pgx.Tx) error { return (&distribution{tx, report}).run(ctx) })
}

// isDistributed reports whether [Migrations.Distribute] has distributed the database.
func (m *Migrations) isDistributed(ctx context.Context) (is bool, err error) {
	if has, err := m.hasCitus(ctx); err != nil || !has {
		return false, err
	}
	err = m.pool.QueryRow(ctx, "SELECT EXISTS (SELECT FROM pg_dist_partition WHERE logicalrelid = to_regclass($1) AND repmodel = 't')", referenceTables[0]).Scan(&is)
	return is, wrapMigration(err)
}

const hasCitus = "SELECT EXISTS (SELECT FROM pg_extension WHERE extname = 'citus')"

// IsSharded reports whether the database is the coordinator of a Citus cluster. It asks the
// database once.
func (d *DB) IsSharded(ctx context.Context) (sharded bool, err error) {
	if known := d.sharded.Load(); known != nil {
		return *known, nil
	}
	if err = d.QueryRow(ctx, hasCitus).Scan(&sharded); err == nil {
		d.sharded.Store(&sharded)
	}
	return sharded, err
}

func (m *Migrations) hasCitus(ctx context.Context) (has bool, err error) {
	err = m.pool.QueryRow(ctx, hasCitus).Scan(&has)
	return has, wrapMigration(err)
}

// distribution is the transaction of [Migrations.Distribute].
type distribution struct {
	tx     pgx.Tx
	report func(step string, took time.Duration)
}

// run drops the foreign keys of the tables while it distributes them, because Citus
// accepts a foreign key only between tables that are distributed.
func (d *distribution) run(ctx context.Context) error {
	var workers int
	var migrated bool
	err := d.tx.QueryRow(ctx, `
		SELECT count(*), to_regclass($1) IS NOT NULL
		FROM pg_dist_node
		WHERE isactive AND shouldhaveshards AND noderole = 'primary'`, referenceTables[0]).Scan(&workers, &migrated)
	switch {
	case err != nil:
		return fmt.Errorf("postgres: distributing: %w", err)
	case workers == 0:
		return errNoWorkers
	case !migrated:
		return errNotMigrated
	}
	// The lock of goose, so that no migration runs meanwhile.
	if err := d.exec(ctx, fmt.Sprintf("SELECT pg_advisory_xact_lock(%d)", lock.DefaultLockID)); err != nil {
		return err
	}
	if err := d.resetFunctions(ctx); err != nil {
		return err
	}
	tables, err := d.pending(ctx)
	if err != nil || len(tables) == 0 {
		return err
	}
	if err := d.propagateLimits(ctx); err != nil {
		return err
	}
	drop, add, err := d.foreignKeys(ctx, tables)
	if err != nil {
		return err
	}
	if err := d.exec(ctx, drop...); err != nil {
		return err
	}
	for _, table := range tables {
		if err := d.distribute(ctx, table); err != nil {
			return fmt.Errorf("postgres: distributing %s: %w", table, err)
		}
	}
	begin := time.Now()
	if err := d.exec(ctx, add...); err != nil {
		return err
	}
	d.report(fmt.Sprintf("checked %d foreign keys", len(add)), time.Since(begin))
	return nil
}

// resetFunctions removes a setting of functions that Citus does not support: it finds the shard of
// an account only in a plan for the values of the parameters. A migration that replaces a function
// sets it again.
func (d *distribution) resetFunctions(ctx context.Context) error {
	reset, err := d.strings(ctx, `
		SELECT format('ALTER FUNCTION %s RESET plan_cache_mode', oid::regprocedure)
		FROM pg_proc
		WHERE pronamespace = current_schema()::regnamespace AND 'plan_cache_mode=force_generic_plan' = ANY (proconfig)`)
	if err != nil {
		return err
	}
	return d.exec(ctx, reset...)
}

// propagateLimits gives the workers the time limits of this session. Otherwise the
// limits of the role apply there, which may be the limits of serve.
func (d *distribution) propagateLimits(ctx context.Context) error {
	limits, err := d.strings(ctx, `
		SELECT format('SET LOCAL %I = %L', name, setting)
		FROM pg_settings
		WHERE name IN ('statement_timeout', 'lock_timeout', 'idle_in_transaction_session_timeout')`)
	if err != nil {
		return err
	}
	return d.exec(ctx, append([]string{"SET LOCAL citus.propagate_set_commands = 'local'"}, limits...)...)
}

// pending returns the tables to distribute. The reference tables are first.
func (d *distribution) pending(ctx context.Context) ([]string, error) {
	return d.strings(ctx, `
		SELECT relname::text
		FROM pg_class
		WHERE relnamespace = current_schema()::regnamespace
		  AND relkind IN ('r', 'p')
		  AND NOT relispartition
		  AND NOT relation_is_a_known_shard(oid)
		  AND (relname = ANY ($1) OR EXISTS (
			SELECT FROM pg_attribute WHERE attrelid = pg_class.oid AND attname = 'account_id' AND NOT attisdropped))
		  AND NOT EXISTS (SELECT FROM pg_dist_partition WHERE logicalrelid = pg_class.oid)
		ORDER BY array_position($1, relname::text), relname`, referenceTables)
}

// foreignKeys returns the statements that drop and add the foreign keys of tables.
func (d *distribution) foreignKeys(ctx context.Context, tables []string) (drop, add []string, err error) {
	const of = `
		FROM pg_constraint
		WHERE contype = 'f'
		  AND conparentid = 0
		  AND connamespace = current_schema()::regnamespace
		  AND conrelid = ANY ($1::text[]::regclass[])
		ORDER BY conrelid::regclass::text, conname`
	if drop, err = d.strings(ctx, "SELECT format('ALTER TABLE %s DROP CONSTRAINT %I', conrelid::regclass, conname)"+of, tables); err != nil {
		return nil, nil, err
	}
	add, err = d.strings(ctx, "SELECT format('ALTER TABLE %s ADD CONSTRAINT %I %s', conrelid::regclass, conname, pg_get_constraintdef(oid))"+of, tables)
	return drop, add, err
}

// distribute distributes one table and deletes the copy of its rows that stays behind.
// The rows of an account are in shards of the same node.
func (d *distribution) distribute(ctx context.Context, table string) error {
	begin := time.Now()
	step := "distributed " + table
	var err error
	if slices.Contains(referenceTables, table) {
		step = "copied " + table + " to every node"
		_, err = d.tx.Exec(ctx, "SELECT create_reference_table($1)", table)
	} else {
		_, err = d.tx.Exec(ctx, `
			SELECT create_distributed_table($1, 'account_id', colocate_with => coalesce(
				(SELECT logicalrelid::text FROM pg_dist_partition JOIN pg_class ON oid = logicalrelid
				 WHERE partmethod = 'h' AND relnamespace = current_schema()::regnamespace ORDER BY logicalrelid LIMIT 1),
				'default'))`, table)
	}
	if err != nil {
		return err
	}
	if _, err := d.tx.Exec(ctx, "SELECT truncate_local_data_after_distributing_table($1)", table); err != nil {
		return err
	}
	d.report(step, time.Since(begin))
	return nil
}

func (d *distribution) exec(ctx context.Context, statements ...string) error {
	for _, statement := range statements {
		if _, err := d.tx.Exec(ctx, statement); err != nil {
			return fmt.Errorf("postgres: distributing: %s: %w", statement, err)
		}
	}
	return nil
}

// strings returns the only column of a query.
func (d *distribution) strings(ctx context.Context, query string, args ...any) ([]string, error) {
	rows, _ := d.tx.Query(ctx, query, args...)
	all, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return nil, fmt.Errorf("postgres: distributing: %w", err)
	}
	return all, nil
}

package pgtest

import (
	"cmp"
	"context"
	"os"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"petstore/internal/sleep"
)

// Engine is the kind of database of a test run. PETSTORE_TEST_ENGINE names it; the
// default is [Postgres].
type Engine string

// The engines. .ci/engines runs the tests on all of them.
const (
	Postgres  Engine = "postgres"  // one server
	PgBouncer Engine = "pgbouncer" // one server behind a PgBouncer in transaction mode
	Replica   Engine = "replica"   // a server with a streaming standby
	Citus     Engine = "citus"     // a Citus cluster, whose coordinator PETSTORE_TEST_DATABASE_URL names
)

var engines = []Engine{Postgres, PgBouncer, Replica, Citus}

// Is reports whether the tests run on an engine.
func Is(engine Engine) bool { return current() == engine }

func current() Engine { return cmp.Or(Engine(os.Getenv("PETSTORE_TEST_ENGINE")), Postgres) }

// Not skips a test that an engine cannot pass by its nature.
func Not(t testing.TB, engine Engine, reason string) {
	t.Helper()
	if Is(engine) {
		t.Skipf("not on the engine %s: %s", engine, reason)
	}
}

// pollInterval is the pause between two looks at the state of a server, which take more CPU time
// than most of what tests wait for.
const pollInterval = 2 * time.Millisecond

// querier is a connection, a pool or a transaction.
type querier interface {
	Query(ctx context.Context, sql string, args ...any) (pgx.Rows, error)
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}

// AwaitLockWaiters waits until n sessions of a database wait for a lock.
func AwaitLockWaiters(ctx context.Context, db querier, n int) error {
	return await(ctx, func() (bool, error) {
		waiters, err := LockWaiters(ctx, db)
		return waiters >= n, err
	})
}

// await waits until a function returns true or an error.
func await(ctx context.Context, done func() (bool, error)) error {
	for {
		if is, err := done(); is || err != nil {
			return err
		}
		if !sleep.For(ctx, pollInterval) {
			return context.Cause(ctx)
		}
	}
}

// LockWaiters counts the sessions of a database that wait for a lock, on all nodes.
func LockWaiters(ctx context.Context, db querier) (waiters int, err error) {
	const here = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
	everywhere := here
	if Is(Citus) {
		everywhere = "SELECT (" + here + ") + (SELECT sum(result::int) FROM run_command_on_workers($$" + here + "$$))"
	}
	err = db.QueryRow(ctx, everywhere).Scan(&waiters)
	return waiters, err
}

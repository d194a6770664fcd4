package pgtest

import (
	"context"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"petstore/internal/postgres"
	"petstore/internal/tools/need"
)

// Open opens a pool as a server does, until the test ends.
func Open(t testing.TB, databaseURL string, maxConns int, tracers ...pgx.QueryTracer) *postgres.DB {
	t.Helper()
	pool := need.Value(postgres.Open(t.Context(), databaseURL, maxConns, tracers...))(t)
	t.Cleanup(pool.Close)
	return pool
}

// executor is a connection, a pool or a transaction.
type executor interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// Exec runs a statement, or several without arguments. They must succeed.
func Exec(t testing.TB, on executor, sql string, args ...any) {
	t.Helper()
	_, err := on.Exec(t.Context(), sql, args...)
	succeed(t, err, sql, args)
}

// Read returns the only value of a query.
func Read[T any](t testing.TB, from querier, sql string, args ...any) (value T) {
	t.Helper()
	succeed(t, from.QueryRow(t.Context(), sql, args...).Scan(&value), sql, args)
	return value
}

// List returns the values of a query, one in each row.
func List[T any](t testing.TB, from querier, sql string, args ...any) []T {
	t.Helper()
	rows, err := from.Query(t.Context(), sql, args...)
	succeed(t, err, sql, args)
	all, err := pgx.CollectRows(rows, pgx.RowTo[T])
	succeed(t, err, sql, args)
	return all
}

// succeed fails the test if a statement has. A test may run it in a loop, so the message has the arguments.
func succeed(t testing.TB, err error, sql string, args []any) {
	t.Helper()
	if err != nil {
		t.Fatalf("pgtest: %s %v: %v", sql, args, err)
	}
}

// Begin begins a transaction, such as one that keeps a lock. It ends with the test at the latest.
func Begin(t testing.TB, pool *pgxpool.Pool) pgx.Tx {
	t.Helper()
	tx := need.Value(pool.Begin(t.Context()))(t)
	t.Cleanup(func() { _ = tx.Rollback(context.WithoutCancel(t.Context())) }) // without effect after its end
	return tx
}

// Rollback ends a transaction of [Begin] before the test.
func Rollback(t testing.TB, tx pgx.Tx) {
	t.Helper()
	need.OK(t, tx.Rollback(t.Context()))
}

// Statements is called before each statement of a pool, also before each of a batch. It is a
// tracer for [Open].
type Statements func(sql string, args []any)

// TraceQueryStart implements [pgx.QueryTracer].
func (s Statements) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	s(data.SQL, data.Args)
	return ctx
}

// TraceQueryEnd implements [pgx.QueryTracer].
func (Statements) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// TraceBatchStart implements [pgx.BatchTracer].
func (s Statements) TraceBatchStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchStartData) context.Context {
	for _, queued := range data.Batch.QueuedQueries {
		s(queued.SQL, queued.Arguments)
	}
	return ctx
}

// TraceBatchQuery implements [pgx.BatchTracer].
func (Statements) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

// TraceBatchEnd implements [pgx.BatchTracer].
func (Statements) TraceBatchEnd(context.Context, *pgx.Conn, pgx.TraceBatchEndData) {}

package pgtest

import (
	"context"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"petstore/internal/postgres"
	"petstore/internal/tools/need"
)

// Open opens a pool as a server does, until the test ends. Its statements wait longer for a connection: on a
// busy machine, opening one can take longer than a server waits.
func Open(t testing.TB, databaseURL string, maxConns int, tracers ...pgx.QueryTracer) *postgres.DB {
	t.Helper()
	pool := need.Value(postgres.Open(t.Context(), databaseURL, maxConns, tracers...))(t)
	t.Cleanup(pool.Close)
	pool.WaitAtMost(time.Minute)
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

// Statement is a statement with its arguments.
type Statement struct {
	SQL  string
	Args []any
}

// Around is called before each statement of a pool, or once before all statements of a batch. It returns
// what to call once they have ended, or nil. It is a tracer for [Open].
type Around func(ctx context.Context, all []Statement) (ended func())

// Statements returns a tracer for [Open] that calls a function before each statement of a pool.
func Statements(before func(sql string, args []any)) Around {
	return func(_ context.Context, all []Statement) (ended func()) {
		for _, one := range all {
			before(one.SQL, one.Args)
		}
		return nil
	}
}

type endedKey struct{}

func (a Around) begin(ctx context.Context, all ...Statement) context.Context {
	if ended := a(ctx, all); ended != nil {
		return context.WithValue(ctx, endedKey{}, sync.OnceFunc(ended)) // pgx ends a batch twice that it could not send
	}
	return ctx
}

func (Around) end(ctx context.Context) {
	if ended, ok := ctx.Value(endedKey{}).(func()); ok {
		ended()
	}
}

// TraceQueryStart implements [pgx.QueryTracer].
func (a Around) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	return a.begin(ctx, Statement{data.SQL, data.Args})
}

// TraceQueryEnd implements [pgx.QueryTracer].
func (a Around) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryEndData) { a.end(ctx) }

// TraceBatchStart implements [pgx.BatchTracer].
func (a Around) TraceBatchStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchStartData) context.Context {
	var all []Statement
	for _, queued := range data.Batch.QueuedQueries {
		all = append(all, Statement{queued.SQL, queued.Arguments})
	}
	return a.begin(ctx, all...)
}

// TraceBatchQuery implements [pgx.BatchTracer].
func (Around) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

// TraceBatchEnd implements [pgx.BatchTracer].
func (a Around) TraceBatchEnd(ctx context.Context, _ *pgx.Conn, _ pgx.TraceBatchEndData) { a.end(ctx) }

package pgtest

import (
	"context"

	"github.com/jackc/pgx/v5"
)

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

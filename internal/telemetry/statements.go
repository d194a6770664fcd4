package telemetry

import (
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"time"
	"unicode"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"go.opentelemetry.io/otel/trace"
)

// Statements logs slow statements and creates spans for the statements of traced requests. A
// batch counts as one statement. It identifies statements by their name in queries/,
// never by their text or arguments. It is a pgx.QueryTracer and a pgx.BatchTracer.
type Statements struct {
	Log *slog.Logger
	// Slow is the minimum duration of a statement that is logged.
	Slow   time.Duration
	Tracer *Tracer
}

// statement is a statement in progress. It is also its context, which saves an
// allocation per statement.
type statement struct {
	context.Context
	sql   string
	batch *pgx.Batch // instead of sql
	began time.Time
	span  trace.Span // nil if not traced
	ended bool
}

// name returns the name of the statement, or the names of a batch, without repetitions.
func (s *statement) name() string {
	if s.batch == nil {
		return statementName(s.sql)
	}
	names := make([]string, len(s.batch.QueuedQueries))
	for i, queued := range s.batch.QueuedQueries {
		names[i] = statementName(queued.SQL)
	}
	return strings.Join(slices.Compact(names), ", ")
}

type statementKey struct{}

// Value returns the statement itself, or a value of the parent context.
func (s *statement) Value(key any) any {
	if key == (statementKey{}) {
		return s
	}
	return s.Context.Value(key)
}

// TraceQueryStart starts timing a statement.
func (t *Statements) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	return t.start(&statement{Context: ctx, sql: data.SQL})
}

// TraceQueryEnd ends the span of a statement, and logs the statement if it was
// slow.
func (t *Statements) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryEndData) {
	t.end(ctx, data.Err)
}

// TraceBatchStart starts timing a batch.
func (t *Statements) TraceBatchStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchStartData) context.Context {
	return t.start(&statement{Context: ctx, batch: data.Batch})
}

// TraceBatchQuery does nothing.
func (*Statements) TraceBatchQuery(context.Context, *pgx.Conn, pgx.TraceBatchQueryData) {}

// TraceBatchEnd ends the span of a batch, and logs the batch if it was slow.
func (t *Statements) TraceBatchEnd(ctx context.Context, _ *pgx.Conn, data pgx.TraceBatchEndData) {
	t.end(ctx, data.Err)
}

func (t *Statements) start(s *statement) context.Context {
	s.began = time.Now()
	if t.Tracer != nil {
		s.Context, s.span = t.Tracer.statement(s.Context, s.name)
	}
	return s
}

func (t *Statements) end(ctx context.Context, err error) {
	s, _ := ctx.Value(statementKey{}).(*statement)
	if s == nil || s.ended {
		return
	}
	s.ended = true // pgx ends a batch twice that it could not send
	if s.span != nil {
		if err != nil {
			failed(s.span, failureOf(err))
		}
		s.span.End()
	}
	took := time.Since(s.began)
	if took < t.Slow {
		return
	}
	attributes := []slog.Attr{
		slog.String("statement", s.name()),
		slog.Int64("duration_us", took.Microseconds()),
	}
	if err != nil {
		attributes = append(attributes, slog.String("failure", failureOf(err)))
	}
	if id := trace.SpanContextFromContext(s.Context).TraceID(); id.IsValid() {
		attributes = append(attributes, slog.String("trace_id", id.String()))
	}
	t.Log.LogAttrs(ctx, slog.LevelWarn, "slow statement", attributes...)
}

// statementName returns the name of a query in queries/, which sqlc writes before
// its text, or the first word of any other statement.
func statementName(sql string) string {
	if named, ok := strings.CutPrefix(sql, "-- name: "); ok {
		name, _, _ := strings.Cut(named, " ")
		return name
	}
	sql = strings.TrimSpace(sql)
	if end := strings.IndexFunc(sql, func(r rune) bool { return !unicode.IsLetter(r) }); end >= 0 {
		sql = sql[:end]
	}
	return strings.ToUpper(sql)
}

// failureOf returns the SQLSTATE of an error, or else the kind of failure. It
// contains no values.
func failureOf(err error) string {
	if failure, ok := errors.AsType[*pgconn.PgError](err); ok {
		return failure.Code
	}
	switch {
	case errors.Is(err, context.DeadlineExceeded):
		return "timeout"
	case errors.Is(err, context.Canceled):
		return "canceled"
	default:
		return "connection"
	}
}

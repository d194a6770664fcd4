package telemetry

import (
	"context"
	"errors"
	"log/slog"
	"strings"
	"time"
	"unicode"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"go.opentelemetry.io/otel/trace"
)

// Statements logs slow statements and creates spans for those of traced requests.
// It identifies statements by their name in queries/, never by their text or
// arguments. It is a pgx.QueryTracer.
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
	began time.Time
	span  trace.Span // nil if not traced
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
	s := &statement{Context: ctx, sql: data.SQL, began: time.Now()}
	if t.Tracer != nil {
		s.Context, s.span = t.Tracer.statement(ctx, statementName(data.SQL))
	}
	return s
}

// TraceQueryEnd ends the span of a statement, and logs the statement if it was
// slow.
func (t *Statements) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryEndData) {
	s, _ := ctx.Value(statementKey{}).(*statement)
	if s == nil {
		return
	}
	if s.span != nil {
		if data.Err != nil {
			failed(s.span, failureOf(data.Err))
		}
		s.span.End()
	}
	took := time.Since(s.began)
	if took < t.Slow {
		return
	}
	attributes := []slog.Attr{
		slog.String("statement", statementName(s.sql)),
		slog.Float64("duration_ms", float64(took.Microseconds())/1000),
	}
	if data.Err != nil {
		attributes = append(attributes, slog.String("failure", failureOf(data.Err)))
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

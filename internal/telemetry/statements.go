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

// Statements tells of the statements that a connection runs, by the names they
// have in queries/ and never by their text or arguments: the slow ones in the
// log, and those of a traced request as spans. It is a tracer of pgx.
type Statements struct {
	Log *slog.Logger
	// Slow is how long a statement takes at least to be logged.
	Slow   time.Duration
	Tracer *Tracer
}

// statement is one that runs. It is the context too in which it runs, which
// spares an allocation for each.
type statement struct {
	context.Context
	sql   string
	began time.Time
	span  trace.Span // nil when it is not traced
}

type statementKey struct{}

// Value gives the statement itself, or what the context around it has.
func (s *statement) Value(key any) any {
	if key == (statementKey{}) {
		return s
	}
	return s.Context.Value(key)
}

// TraceQueryStart begins to watch a statement.
func (t *Statements) TraceQueryStart(ctx context.Context, _ *pgx.Conn, data pgx.TraceQueryStartData) context.Context {
	s := &statement{Context: ctx, sql: data.SQL, began: time.Now()}
	if t.Tracer != nil {
		s.Context, s.span = t.Tracer.statement(ctx, statementName(data.SQL))
	}
	return s
}

// TraceQueryEnd tells of a statement that has ended.
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

// statementName is the name of a query in queries/, which sqlc writes before its
// text; of any other statement it is the first word.
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

// failureOf says why a statement failed, in a word that holds no value: the
// SQLSTATE, or what kind of failure came before the server could say.
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

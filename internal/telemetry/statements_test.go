package telemetry_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"petstore/internal/pgtest"
	"petstore/internal/telemetry"
	"petstore/internal/tools/need"
)

// ending ends each batch a while after it has begun, if it is not 0.
type ending struct {
	*telemetry.Statements
	t     *testing.T
	after time.Duration
}

func (e *ending) TraceBatchStart(ctx context.Context, conn *pgx.Conn, data pgx.TraceBatchStartData) context.Context {
	ctx = e.Statements.TraceBatchStart(ctx, conn, data)
	if e.after > 0 {
		var end context.CancelFunc
		ctx, end = context.WithTimeout(ctx, e.after)
		e.t.Cleanup(end)
	}
	return ctx
}

// TestSlowStatements: the log has slow statements by name, without their text,
// parameters or results.
func TestSlowStatements(t *testing.T) {
	t.Parallel()
	const slow = 500 * time.Millisecond
	var log bytes.Buffer
	const fast = time.Hour // nothing takes as long, however busy the machine is
	statements := &ending{Statements: &telemetry.Statements{Log: slog.New(slog.NewJSONHandler(&log, nil)), Slow: fast}, t: t}
	pool := pgtest.Open(t, pgtest.New(t).URL, 1, statements)

	const napping = "-- name: Nap :one\nSELECT 'hidden text', $1::text FROM pg_sleep($2)"
	run := func(sql string, args ...any) {
		t.Helper()
		pgtest.Exec(t, pool, sql, args...)
	}
	batch := func(naps ...float64) error {
		b := &pgx.Batch{}
		for _, nap := range naps {
			b.Queue(napping, "hidden argument", nap)
		}
		b.Queue("SELECT 'hidden text'")
		return pool.SendBatch(t.Context(), b).Close()
	}
	run(napping, "hidden argument", 0.0)
	err := batch(0, 0)
	statements.Slow = slow
	run(napping, "hidden argument", slow.Seconds())
	run("select/**/pg_sleep($1)", slow.Seconds())
	need.OK(t, errors.Join(err, batch(0, slow.Seconds())))
	statements.after = slow
	if err := batch(10); err == nil {
		t.Fatal("a batch exceeds its deadline")
	}
	statements.Slow = fast
	run("SET statement_timeout = '500ms'")
	statements.Slow = slow
	if _, err := pool.Exec(t.Context(), napping, "hidden argument", 10.0); err == nil {
		t.Fatal("a statement exceeds statement_timeout")
	}

	type line struct {
		Level, Msg, Statement, Failure string
		Took                           int64 `json:"duration_us"`
	}
	var got []line
	for text := range strings.Lines(log.String()) {
		var one line
		if err := json.Unmarshal([]byte(text), &one); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		if least := slow.Microseconds(); one.Took < least {
			t.Errorf("%s is slow after %d µs", one.Statement, one.Took)
		}
		one.Took = 0
		got = append(got, one)
	}
	want := []line{
		{Level: "WARN", Msg: "slow statement", Statement: "Nap"},
		{Level: "WARN", Msg: "slow statement", Statement: "SELECT"},
		{Level: "WARN", Msg: "slow statement", Statement: "Nap, SELECT"},
		{Level: "WARN", Msg: "slow statement", Statement: "Nap, SELECT", Failure: "timeout"},
		{Level: "WARN", Msg: "slow statement", Statement: "Nap", Failure: "57014"},
	}
	need.Same(t, want, got, "log")
	if strings.Contains(log.String(), "hidden") {
		t.Errorf("the log contains parameters:\n%s", &log)
	}
}

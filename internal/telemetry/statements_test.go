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

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"petstore/internal/pgtest"
	"petstore/internal/postgres"
	"petstore/internal/telemetry"
)

// TestSlowStatements: the log has slow statements by name, without their text,
// parameters or results.
func TestSlowStatements(t *testing.T) {
	t.Parallel()
	const slow = 500 * time.Millisecond
	var log bytes.Buffer
	statements := &telemetry.Statements{Log: slog.New(slog.NewJSONHandler(&log, nil)), Slow: slow}
	pool, err := postgres.Open(t.Context(), pgtest.New(t).URL, 1, statements)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()

	const napping = "-- name: Nap :one\nSELECT 'hidden text', $1::text FROM pg_sleep($2)"
	run := func(sql string, args ...any) {
		t.Helper()
		if _, err := pool.Exec(t.Context(), sql, args...); err != nil {
			t.Fatal(err)
		}
	}
	run(napping, "hidden argument", 0.0)
	run(napping, "hidden argument", slow.Seconds())
	run("select/**/pg_sleep($1)", slow.Seconds())
	batch := func(ctx context.Context, naps ...float64) error {
		b := &pgx.Batch{}
		for _, nap := range naps {
			b.Queue(napping, "hidden argument", nap)
		}
		b.Queue("SELECT 'hidden text'")
		return pool.SendBatch(ctx, b).Close()
	}
	if err := errors.Join(batch(t.Context(), 0, 0), batch(t.Context(), 0, slow.Seconds())); err != nil {
		t.Fatal(err)
	}
	ended, end := context.WithTimeout(t.Context(), 2*slow) // a part of it passes before the batch begins
	defer end()
	if err := batch(ended, 10); err == nil {
		t.Fatal("a batch exceeds its deadline")
	}
	run("SET statement_timeout = '500ms'")
	if _, err := pool.Exec(t.Context(), napping, "hidden argument", 10.0); err == nil {
		t.Fatal("a statement exceeds statement_timeout")
	}

	type line struct {
		Level, Msg, Statement, Failure string
		Took                           float64 `json:"duration_ms"`
	}
	var got []line
	for text := range strings.Lines(log.String()) {
		var one line
		if err := json.Unmarshal([]byte(text), &one); err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		if least := float64(slow.Milliseconds()); one.Took < least {
			t.Errorf("%s is slow after %v ms", one.Statement, one.Took)
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
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("log (-want +got):\n%s", diff)
	}
	if strings.Contains(log.String(), "hidden") {
		t.Errorf("the log contains parameters:\n%s", &log)
	}
}

package telemetry_test

import (
	"bytes"
	"fmt"
	"io"
	"log/slog"
	"math"
	"strings"
	"testing"
	"time"

	"petstore/internal/telemetry"
)

// writes is a writer that sends each write to a channel.
type writes chan string

func (w writes) Write(lines []byte) (int, error) {
	w <- string(lines)
	return len(lines), nil
}

// TestLoggerWritesManyLinesAtATime: lines wait for others, but nobody needs to flush them.
func TestLoggerWritesManyLinesAtATime(t *testing.T) {
	t.Parallel()
	const lines = 5000
	written := make(writes, lines)
	log, flush := telemetry.NewLogger(written, slog.LevelInfo, telemetry.JSON)
	log = log.With("a", 1).WithGroup("g")
	for i := range lines {
		log.Info("line", "i", i)
	}
	flush()
	flush() // writes nothing
	count := len(written)
	if count > lines/100 {
		t.Errorf("%d lines were written %d times", lines, count)
	}
	all := ""
	for range count {
		all += <-written
	}
	if got := strings.Count(all, "\n"); got != lines || !strings.HasSuffix(all, `"msg":"line","a":1,"g":{"i":4999}}`+"\n") {
		t.Errorf("%d lines were written, want %d; the end is %q", got, lines, all[max(0, len(all)-200):])
	}

	for n := range 2 {
		log.Info("another line", slog.Int("n", n))
		if line := <-written; !strings.Contains(line, fmt.Sprintf(`"n":%d}`, n)) { // without a call of flush
			t.Errorf("the logger wrote %q, want line %d", line, n)
		}
	}
}

// TestLoggerWritesWarningsAtOnce: a warning is written before the call returns, after the
// lines before it.
func TestLoggerWritesWarningsAtOnce(t *testing.T) {
	t.Parallel()
	for _, format := range []string{telemetry.JSON, telemetry.Text} {
		written := make(writes, 10)
		log, _ := telemetry.NewLogger(written, slog.LevelInfo, format)
		log.Info("one")
		log.With("a", 1).Warn("two")
		log.Debug("hidden")
		log.Error("three")
		close(written)
		var all bytes.Buffer
		for lines := range written {
			all.WriteString(lines)
		}
		one, two, three := strings.Index(all.String(), "one"), strings.Index(all.String(), "two"), strings.Index(all.String(), "three")
		if one < 0 || two < one || three < two || strings.Contains(all.String(), "hidden") {
			t.Errorf("%s: a logger of level INFO wrote:\n%s", format, &all)
		}
	}
}

// TestPlainLines compares the lines of the logger with the lines of slog.
func TestPlainLines(t *testing.T) {
	t.Parallel()
	at := time.Now()
	for _, a := range []slog.Attr{
		slog.Int("status", 200), slog.Int("n", math.MinInt64), slog.Uint64("u", math.MaxUint64),
		slog.Float64("f", 0), slog.Float64("f", 0.001), slog.Float64("f", 1234567.891), slog.Float64("f", 1e-6), slog.Float64("f", 9e-7),
		slog.Float64("f", 1e20), slog.Float64("f", 1e21), slog.Float64("f", -2.5), slog.Float64("f", math.Copysign(0, -1)), slog.Float64("f", math.Inf(1)),
		slog.String("s", ""), slog.String("s", "a b/{c}~"), slog.String("s", `"`), slog.String("s", `\`), slog.String("s", "\x1f"), slog.String("s", "\x7f"),
		slog.String("s", "é"), slog.String("s", "\xff"), slog.String("s", "<&>\u2028"), slog.String(`"`, "key"), slog.String("", "no key"),
		{},
		slog.Bool("b", true), slog.Duration("d", time.Second), slog.Time("t", at), slog.Any("error", io.EOF), slog.Any("nil", nil), slog.Group("g", slog.Int("n", 1)), slog.Group("g"),
	} {
		for name, with := range map[string]func(slog.Handler) slog.Handler{
			"nothing": func(h slog.Handler) slog.Handler { return h },
			"attributes": func(h slog.Handler) slog.Handler {
				return h.WithAttrs([]slog.Attr{slog.String("a", "b"), slog.Int("c", 1)})
			},
			"itself":          func(h slog.Handler) slog.Handler { return h.WithAttrs([]slog.Attr{a}) },
			"itself and more": func(h slog.Handler) slog.Handler { return h.WithAttrs([]slog.Attr{a, slog.Int("c", 1)}) },
			"a group":         func(h slog.Handler) slog.Handler { return h.WithAttrs([]slog.Attr{a}).WithGroup("g") },
		} {
			for _, message := range []string{"request", `not "plain"`} {
				record := slog.NewRecord(at, slog.LevelInfo, message, 0)
				record.AddAttrs(slog.Int("first", 1), a, slog.String("last", "x"))
				var got, want bytes.Buffer
				log, flush := telemetry.NewLogger(&got, slog.LevelInfo, telemetry.JSON)
				errs := [2]error{with(log.Handler()).Handle(t.Context(), record), with(slog.NewJSONHandler(&want, nil)).Handle(t.Context(), record)}
				flush()
				if got.String() != want.String() || errs != [2]error{} {
					t.Errorf("with %s:\ngot  %swant %s%v", name, &got, &want, errs)
				}
			}
		}
	}
}

// TestPlainLinesAllocateNothing checks a line like the one of each request.
func TestPlainLinesAllocateNothing(t *testing.T) { //nolint:paralleltest // it counts the allocations of all tests
	log, flush := telemetry.NewLogger(io.Discard, slog.LevelInfo, telemetry.JSON)
	defer flush()
	handler := log.With("method", "GET", "route", "/pets/:petId").Handler()
	got := testing.AllocsPerRun(1000, func() {
		record := slog.NewRecord(time.Now(), slog.LevelInfo, "request", 0)
		record.AddAttrs(slog.Int("status", 200), slog.Float64("duration_ms", 1.234), slog.String("request_id", "a"), slog.String("key", "b"))
		_ = handler.Handle(t.Context(), record)
	})
	if got > 0 {
		t.Errorf("a line allocates %v times", got)
	}
}

// Package telemetry provides logging, metrics and traces. Only it imports Prometheus and
// OpenTelemetry.
//
// Labels and spans have route patterns, names of statements and SQLSTATEs. The usual
// middleware (otelgin, otelpgx) also puts paths, SQL and driver errors into spans, and these
// can quote values of clients.
package telemetry

import (
	"context"
	"io"
	"log/slog"
	"sync"
	"time"
)

// The formats of log lines.
const (
	JSON = "json" // one object a line, for machines
	Text = "text" // key=value, for people
)

// Lines below WARN wait for others for at most flushAfter, or until flushFrom bytes of
// them are there. A system call for each line would be a tenth of the CPU time of a read.
const (
	flushAfter = 50 * time.Millisecond
	flushFrom  = 64 << 10
)

// NewLogger returns a logger that writes records of at least the given level to w. Lines
// below WARN may arrive 50 ms late. Call flush before the program ends.
func NewLogger(w io.Writer, level slog.Level, format string) (log *slog.Logger, flush func()) {
	lines := &lineBuffer{w: w}
	options := &slog.HandlerOptions{Level: level}
	var handler slog.Handler = slog.NewJSONHandler(lines, options)
	if format == Text {
		handler = slog.NewTextHandler(lines, options)
	}
	return slog.New(flushingHandler{handler, lines}), lines.flush
}

// lineBuffer collects lines and writes many at a time. It is safe for concurrent use.
type lineBuffer struct {
	mu    sync.Mutex
	w     io.Writer
	lines []byte
	timer *time.Timer // flushes; nil until it is needed
}

// Write adds a line.
func (b *lineBuffer) Write(line []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case len(b.lines) > 0:
	case b.timer == nil:
		b.timer = time.AfterFunc(flushAfter, b.flush)
	default:
		b.timer.Reset(flushAfter)
	}
	b.lines = append(b.lines, line...)
	if len(b.lines) >= flushFrom {
		b.flushLocked()
	}
	return len(line), nil
}

// flush writes all lines.
func (b *lineBuffer) flush() {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.flushLocked()
}

// flushLocked writes all lines. The caller holds the lock.
func (b *lineBuffer) flushLocked() {
	if len(b.lines) > 0 {
		_, _ = b.w.Write(b.lines) // nobody can log that the log is full
		b.lines = b.lines[:0]
	}
}

// flushingHandler writes records of at least WARN, and those before them, at once.
type flushingHandler struct {
	slog.Handler

	lines *lineBuffer
}

// Handle handles a record.
func (h flushingHandler) Handle(ctx context.Context, record slog.Record) error {
	err := h.Handler.Handle(ctx, record)
	if record.Level >= slog.LevelWarn {
		h.lines.flush()
	}
	return err
}

// WithAttrs returns a handler that adds attributes.
func (h flushingHandler) WithAttrs(attributes []slog.Attr) slog.Handler {
	return flushingHandler{h.Handler.WithAttrs(attributes), h.lines}
}

// WithGroup returns a handler that adds attributes to a group.
func (h flushingHandler) WithGroup(name string) slog.Handler {
	return flushingHandler{h.Handler.WithGroup(name), h.lines}
}

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
	"strconv"
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
	if format == Text {
		return slog.New(flushingHandler{Handler: slog.NewTextHandler(lines, options), lines: lines}), lines.flush
	}
	return slog.New(flushingHandler{slog.NewJSONHandler(lines, options), lines, true, ""}), lines.flush
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
	// plain means that appendPlain may format records, with these attributes.
	plain      bool
	attributes string
}

// Handle handles a record.
func (h flushingHandler) Handle(ctx context.Context, record slog.Record) (err error) {
	var space [512]byte // more than a usual line has
	if line, ok := h.appendPlain(space[:0], record); ok {
		_, err = h.lines.Write(line)
	} else {
		err = h.Handler.Handle(ctx, record)
	}
	if record.Level >= slog.LevelWarn {
		h.lines.flush()
	}
	return err
}

// WithAttrs returns a handler that adds attributes.
func (h flushingHandler) WithAttrs(attributes []slog.Attr) slog.Handler {
	h.Handler = h.Handler.WithAttrs(attributes)
	line := []byte(h.attributes)
	for _, a := range attributes {
		if h.plain {
			line, h.plain = appendAttribute(line, a)
		}
	}
	h.attributes = string(line)
	return h
}

// WithGroup returns a handler that adds attributes to a group.
func (h flushingHandler) WithGroup(name string) slog.Handler {
	return flushingHandler{Handler: h.Handler.WithGroup(name), lines: h.lines}
}

// appendPlain appends the line of a record as [slog.JSONHandler] does. It reports false for
// a record that is not plain. The handler would allocate for the duration in the line of
// each request, because it formats a float64 by reflection.
func (h flushingHandler) appendPlain(line []byte, record slog.Record) (_ []byte, ok bool) {
	if !h.plain || !isPlain(record.Message) || record.Time.IsZero() {
		return line, false
	}
	line = record.Time.AppendFormat(append(line, `{"time":"`...), time.RFC3339Nano)
	line = append(append(line, `","level":"`...), record.Level.String()...)
	line = append(append(append(line, `","msg":"`...), record.Message...), '"')
	line, ok = append(line, h.attributes...), true
	record.Attrs(func(a slog.Attr) bool {
		line, ok = appendAttribute(line, a)
		return ok
	})
	return append(line, "}\n"...), ok
}

// appendAttribute appends an attribute, or reports false if it is not plain.
func appendAttribute(line []byte, a slog.Attr) ([]byte, bool) {
	if !isPlain(a.Key) {
		return line, false
	}
	line = append(append(append(line, `,"`...), a.Key...), `":`...)
	switch a.Value.Kind() {
	case slog.KindInt64:
		return strconv.AppendInt(line, a.Value.Int64(), 10), true
	case slog.KindFloat64:
		const least, most = 1e-6, 1e21 // encoding/json writes others with an exponent
		f := a.Value.Float64()
		return strconv.AppendFloat(line, f, 'f', -1, 64), f == 0 || f >= least && f < most
	case slog.KindString:
		text := a.Value.String()
		return append(append(append(line, '"'), text...), '"'), isPlain(text)
	default:
		return line, false
	}
}

// isPlain reports whether JSON has a text as it is.
func isPlain(text string) bool {
	for i := range len(text) {
		if c := text[i]; c < ' ' || c > '~' || c == '"' || c == '\\' {
			return false
		}
	}
	return true
}

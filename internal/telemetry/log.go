// Package telemetry provides logging, metrics and traces. Only it imports Prometheus and
// OpenTelemetry.
//
// Labels and spans have route patterns, names of statements and SQLSTATEs. The usual
// middleware (otelgin, otelpgx) also puts paths, SQL and driver errors into spans, and these
// can quote values of clients.
package telemetry

import (
	"bytes"
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
// If w blocks, up to maxWaiting bytes wait, and nobody waits for longer than maxBlocked.
const (
	flushAfter = 50 * time.Millisecond
	flushFrom  = 64 << 10
	maxWaiting = 1 << 20
	maxBlocked = time.Second
)

// NewLogger returns a logger that writes records of at least the given level to w. Lines
// below WARN may arrive 50 ms late. While w blocks, the logger drops what it cannot keep, so
// that a program whose reader hangs goes on. Call flush before the program ends.
func NewLogger(w io.Writer, level slog.Level, format string) (log *slog.Logger, flush func()) {
	lines := &lineBuffer{w: w}
	options := &slog.HandlerOptions{Level: level}
	var handler slog.Handler = slog.NewJSONHandler(lines, options)
	if format == Text {
		handler = slog.NewTextHandler(lines, options)
	}
	lines.report = func(dropped int) {
		slog.New(handler).Warn("the log lacks lines, because nobody read it or it had no room", "lines", dropped)
	}
	return slog.New(flushingHandler{handler, lines}), lines.flush
}

// lineBuffer collects lines and writes many at a time. It is safe for concurrent use.
type lineBuffer struct {
	w      io.Writer
	report func(dropped int) // adds a line

	mu      sync.Mutex
	lines   []byte
	writing chan struct{} // closed after the write in progress; nil: there is none
	blocks  bool          // a caller has waited in vain for the write in progress
	dropped int           // lines since the last report
	torn    bool          // the last line that w took is not whole; of the write in progress
}

// Write adds a line, or drops it if too much waits.
func (b *lineBuffer) Write(line []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if len(b.lines)+len(line) > maxWaiting {
		b.wait()
	}
	if len(b.lines)+len(line) > maxWaiting {
		b.dropped++
		return len(line), nil
	}
	if len(b.lines) == 0 {
		time.AfterFunc(flushAfter, func() {
			b.mu.Lock()
			defer b.mu.Unlock()
			b.start()
		})
	}
	b.lines = append(b.lines, line...)
	if len(b.lines) >= flushFrom {
		b.start()
	}
	return len(line), nil
}

// flush writes all lines, unless w blocks.
func (b *lineBuffer) flush() {
	b.mu.Lock()
	defer b.mu.Unlock()
	writes := 1
	if b.writing != nil && len(b.lines) > 0 { // the next write has them
		writes = 2
	}
	b.start()
	for range writes {
		b.wait()
	}
}

// start lets a goroutine write all lines, if none does. The caller holds the lock.
func (b *lineBuffer) start() {
	if b.writing == nil && len(b.lines) > 0 {
		b.writing = make(chan struct{})
		go b.writeAll()
	}
}

// wait waits for the write in progress, unless w blocks. The caller holds the lock, except meanwhile.
func (b *lineBuffer) wait() {
	writing := b.writing
	if writing == nil || b.blocks {
		return
	}
	b.mu.Unlock()
	timer := time.NewTimer(maxBlocked)
	defer timer.Stop()
	select {
	case <-writing:
		b.mu.Lock()
	case <-timer.C:
		b.mu.Lock()
		b.blocks = b.writing == writing
	}
}

var newline = []byte("\n")

// writeAll writes until no lines are left.
func (b *lineBuffer) writeAll() {
	b.mu.Lock()
	defer b.mu.Unlock()
	var free []byte
	for len(b.lines) > 0 {
		lines, dropped := b.lines, b.dropped
		b.lines, b.dropped = free[:0], 0
		b.mu.Unlock()
		if dropped > 0 {
			b.report(dropped)
		}
		if b.torn {
			_, _ = b.w.Write(newline) // w may still refuse, and then another write follows
		}
		written, _ := b.w.Write(lines) // the next report counts the lines that an error has cost
		b.torn = written < len(lines)
		b.mu.Lock()
		b.dropped += bytes.Count(lines[written:], newline)
		free = lines
		close(b.writing)
		b.writing, b.blocks = make(chan struct{}), false
	}
	b.lines, b.writing = free[:0], nil
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

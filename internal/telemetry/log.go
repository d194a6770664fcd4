// Package telemetry provides logging, metrics and traces.
package telemetry

import (
	"io"
	"log/slog"
)

// The formats of log lines.
const (
	JSON = "json" // one object a line, for machines
	Text = "text" // key=value, for people
)

// NewLogger returns a logger that writes records of at least the given level to w.
func NewLogger(w io.Writer, level slog.Level, format string) *slog.Logger {
	options := &slog.HandlerOptions{Level: level}
	if format == Text {
		return slog.New(slog.NewTextHandler(w, options))
	}
	return slog.New(slog.NewJSONHandler(w, options))
}

package exchange

import (
	"context"
	"time"
)

// Flush writes the buffer once.
func (r *Recorder) Flush(ctx context.Context) { r.flush(ctx) }

// SetClosingTime sets the time for which Run writes after the end of its context.
func (r *Recorder) SetClosingTime(limit time.Duration) { r.closing = limit }

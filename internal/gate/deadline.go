package gate

import (
	"context"
	"sync"
	"time"
)

// deadline is a context that ends at a time or with its parent, as a context of
// [context.WithDeadline] does. It sets a timer only when somebody waits for its end. Most
// requests end before, and a timer for each would be a twelfth of the CPU time of a read.
type deadline struct {
	context.Context // the parent

	mu     sync.Mutex
	at     time.Time
	timed  context.Context // has the timer; nil: nobody waits
	cancel context.CancelFunc
}

// Deadline returns the time.
func (d *deadline) Deadline() (time.Time, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.at, true
}

// Done returns a channel that is closed at the end. It sets the timer.
func (d *deadline) Done() <-chan struct{} { return d.wait().Done() }

// Err returns why the context has ended, or nil. It sets the timer.
func (d *deadline) Err() error { return d.wait().Err() }

// Value returns a value of the parent. Package context finds the timer by it, and then needs
// no goroutine for each child.
func (d *deadline) Value(key any) any {
	d.mu.Lock()
	timed := d.timed
	d.mu.Unlock()
	if timed != nil {
		return timed.Value(key)
	}
	return d.Context.Value(key)
}

// wait returns the context with the timer.
func (d *deadline) wait() context.Context {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.timed == nil {
		d.timed, d.cancel = context.WithDeadline(d.Context, d.at)
	}
	return d.timed
}

// move changes the time, when nobody waits.
func (d *deadline) move(at time.Time) {
	d.stop()
	d.mu.Lock()
	defer d.mu.Unlock()
	d.at, d.timed, d.cancel = at, nil, nil
}

// stop stops the timer, if there is one.
func (d *deadline) stop() {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.cancel != nil {
		d.cancel()
	}
}

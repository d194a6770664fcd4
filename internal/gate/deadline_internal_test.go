package gate

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"
)

// TestDeadline compares a deadline with a context of package context, for somebody who waits
// and for children of all kinds.
func TestDeadline(t *testing.T) {
	t.Parallel()
	type key struct{}
	for name, test := range map[string]struct {
		act  func(d *deadline, leave context.CancelFunc)
		ends time.Duration // after which the context ends
		want error
	}{
		"nothing":               {func(*deadline, context.CancelFunc) {}, time.Second, context.DeadlineExceeded},
		"the parent ends":       {func(_ *deadline, leave context.CancelFunc) { leave() }, 0, context.Canceled},
		"the request ends":      {func(d *deadline, _ context.CancelFunc) { _ = d.Err(); d.stop() }, 0, context.Canceled},
		"more time":             {func(d *deadline, _ context.CancelFunc) { d.move(d.at.Add(time.Hour)) }, time.Hour + time.Second, context.DeadlineExceeded},
		"more time after waits": {func(d *deadline, _ context.CancelFunc) { _ = d.Err(); d.move(d.at.Add(time.Hour)) }, time.Hour + time.Second, context.DeadlineExceeded},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				began := time.Now()
				parent, leave := context.WithCancel(context.WithValue(t.Context(), key{}, "value"))
				defer leave()
				d := &deadline{Context: parent, at: began.Add(time.Second)}
				defer d.stop()
				test.act(d, leave)
				later, cancel := context.WithTimeout(d, 2*time.Hour)
				defer cancel()
				for what, ctx := range map[string]context.Context{"itself": d, "a child": context.WithValue(d, t, t), "a child with a later deadline": later} {
					<-ctx.Done()
					if took := time.Since(began); took != test.ends || !errors.Is(ctx.Err(), test.want) || !errors.Is(context.Cause(ctx), test.want) || ctx.Value(key{}) != "value" {
						t.Errorf("%s: ended after %s with %v, want %s and %v", what, took, ctx.Err(), test.ends, test.want)
					}
				}
			})
		})
	}
}

// TestDeadlineWithoutWaiting checks that a request for which nobody waits has no timer.
func TestDeadlineWithoutWaiting(t *testing.T) { //nolint:paralleltest // it counts the allocations of all tests
	d := &deadline{Context: t.Context(), at: time.Now().Add(time.Hour)}
	if allocated := testing.AllocsPerRun(100, func() {
		_, _ = d.Deadline()
		_ = d.Value(requestKey{})
		d.stop()
	}); allocated != 0 || d.timed != nil {
		t.Errorf("%v allocations, and the timer is %v", allocated, d.timed)
	}
}

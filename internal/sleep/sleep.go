// Package sleep waits for a time, and no longer than a context.
package sleep

import (
	"context"
	"time"
)

// For waits for d. It reports false if ctx ends first.
func For(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}

// AtMost waits for an action, but not longer than a limit. The action goes on after that.
func AtMost(limit time.Duration, action func()) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	go func() {
		action()
		cancel()
	}()
	<-ctx.Done()
}

// Until returns what an action returns, or the error of ctx as soon as ctx ends. The action goes on after that.
func Until[T any](ctx context.Context, action func() (T, error)) (got T, err error) {
	type result struct {
		got T
		err error
	}
	done := make(chan result, 1)
	go func() {
		got, err := action()
		done <- result{got, err}
	}()
	select {
	case r := <-done:
		return r.got, r.err
	case <-ctx.Done():
		return got, ctx.Err()
	}
}

// Every calls an action at once, and again an interval after each call, until ctx ends.
func Every(ctx context.Context, interval time.Duration, action func(context.Context)) {
	for ctx.Err() == nil {
		action(ctx)
		For(ctx, interval)
	}
}

// Stagger waits before the first action of the loop with number n, of several that start together.
// So they can use one connection in turn, and a process that starts does not open one for each.
func Stagger(ctx context.Context, n int) {
	const between = 10 * time.Millisecond
	For(ctx, time.Duration(n)*between)
}

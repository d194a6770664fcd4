package main

import (
	"context"
	"fmt"
	"sync"
	"time"
)

// failure ends a row, as FailNow ends a test. Helpers panic with it, and attempt recovers
// it.
type failure struct{ error }

// check fails the row unless err is nil.
func check(err error) {
	if err != nil {
		panic(failure{err})
	}
}

// must returns a value. It fails the row unless err is nil.
func must[T any](value T, err error) T {
	check(err)
	return value
}

// require fails the row with a message unless ok is true.
func require(ok bool, format string, args ...any) {
	if !ok {
		check(fmt.Errorf(format, args...))
	}
}

// attempt calls a function, and returns its failure as an error. Every goroutine that uses
// failing helpers runs in an attempt.
func attempt(do func()) (err error) {
	defer func() {
		switch cause := recover().(type) {
		case nil:
		case failure:
			err = cause.error
		default:
			panic(cause)
		}
	}()
	do()
	return nil
}

// within calls a function, and says in its failure what it did.
func within(what string, do func()) {
	if err := attempt(do); err != nil {
		check(fmt.Errorf("%s: %w", what, err))
	}
}

// background calls a function in a goroutine. wait waits for its end, and fails the row if
// the function failed.
func background(do func()) (wait func()) {
	ended := make(chan error, 1)
	go func() { ended <- attempt(do) }()
	return sync.OnceFunc(func() { check(<-ended) })
}

// parallel calls a function with the numbers from 0 to count-1 at the same time, and waits
// for all calls. It fails the row if one of them failed.
func parallel(count int, do func(number int)) {
	failures := make([]error, count)
	var group sync.WaitGroup
	for number := range count {
		group.Go(func() { failures[number] = attempt(func() { do(number) }) })
	}
	group.Wait()
	for _, err := range failures {
		check(err)
	}
}

// sleep waits for d or until the context ends.
func sleep(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// eventually repeats a function until it does not fail, and returns how long that took. The
// row fails if that takes longer than the limit.
func eventually(ctx context.Context, limit time.Duration, do func()) time.Duration {
	const interval = 5 * time.Millisecond
	began := time.Now()
	for {
		err := attempt(do)
		took := time.Since(began)
		if err == nil {
			return took
		}
		if took > limit || ctx.Err() != nil {
			check(fmt.Errorf("not within %s: %w", limit, err))
		}
		sleep(ctx, interval)
	}
}

// Package must ends an experiment at its first error, as the helpers of a test do: a
// function of this package panics, and [Attempt] returns the error.
package must

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"
)

// failure is the panic that ends an experiment.
type failure struct{ error }

// OK fails unless err is nil.
func OK(err error) {
	if err != nil {
		panic(failure{err})
	}
}

// Get returns a value. It fails unless err is nil.
func Get[T any](value T, err error) T {
	OK(err)
	return value
}

// Hold fails with a message unless ok is true.
func Hold(ok bool, format string, args ...any) {
	if !ok {
		OK(fmt.Errorf(format, args...))
	}
}

// Attempt calls a function, and returns its failure as an error. Every goroutine that may
// fail needs it, and so do [Background] and [Parallel], which have it.
func Attempt(do func()) (err error) {
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

// Explain calls a function, and says in its failure what it did.
func Explain(what string, do func()) {
	if err := Attempt(do); err != nil {
		OK(fmt.Errorf("%s: %w", what, err))
	}
}

// Background calls a function in a goroutine. wait waits for its end, and fails if the
// function failed.
func Background(do func()) (wait func()) {
	ended := make(chan error, 1)
	go func() { ended <- Attempt(do) }()
	return sync.OnceFunc(func() { OK(<-ended) })
}

// Parallel calls a function with the numbers from 0 to count-1 at the same time, and waits
// for all calls. It fails if one of them failed.
func Parallel(count int, do func(number int)) {
	failures := make([]error, count)
	var group sync.WaitGroup
	for number := range count {
		group.Go(func() { failures[number] = Attempt(func() { do(number) }) })
	}
	group.Wait()
	OK(errors.Join(failures...))
}

// Together calls functions at the same time, and waits for all calls. The first failure ends their
// context, and Together fails with it.
func Together(ctx context.Context, calls ...func(context.Context)) {
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	Parallel(len(calls), func(number int) {
		if err := Attempt(func() { calls[number](ctx) }); err != nil {
			cancel(err)
		}
	})
	OK(context.Cause(ctx))
}

// Await repeats a function until it does not fail, and returns how long that took. It fails
// if that takes longer than the limit, and at once if earlier steps have used up the limit.
func Await(ctx context.Context, limit time.Duration, do func()) time.Duration {
	const interval = 5 * time.Millisecond
	Hold(limit > 0, "the limit ended %s before the wait began", -limit)
	began := time.Now()
	for {
		err := Attempt(do)
		took := time.Since(began)
		if err == nil {
			Hold(took <= limit, "it took %s, want at most %s", took, limit)
			return took
		}
		if took > limit || ctx.Err() != nil {
			OK(fmt.Errorf("not within %s: %w", limit, err))
		}
		select {
		case <-ctx.Done():
		case <-time.After(interval):
		}
	}
}

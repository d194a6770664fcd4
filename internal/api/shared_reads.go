package api

import (
	"context"
	"slices"

	"petstore/internal/admission"
	"petstore/internal/coalesce"
	"petstore/internal/postgres"
)

// The choice whether a shared read must know the position after it.
const (
	withEnd    = true
	withoutEnd = false
)

// sharedRead is a [coalesce.Coalescer] of reads. Only requests that read from the same
// server share a run, and each checks what the run saw against its own position.
type sharedRead[Key comparable, In, Out any] struct {
	runs *coalesce.Coalescer[readKey[Key], In, outcome[Out]]
}

// readKey is the key of runs on one server.
type readKey[Key comparable] struct {
	target any // of a [postgres.Reader]
	key    Key
}

// outcome has the output of a run, and what the run saw.
type outcome[Out any] struct {
	out  Out
	seen postgres.Seen
}

// shareReads returns a sharedRead of a function, which [coalesce.New] describes.
func shareReads[Key comparable, In, Out any](limits coalesce.Limits, ends bool, run func(context.Context, Key, []In) ([]Out, error)) *sharedRead[Key, In, Out] {
	return &sharedRead[Key, In, Out]{coalesce.New(limits, func(ctx context.Context, key readKey[Key], ins []In) ([]outcome[Out], error) {
		ctx, reader := postgres.ReaderOf(ctx).Shared(ctx, ends)
		outs, err := run(ctx, key.key, ins)
		all, seen := make([]outcome[Out], len(outs)), reader.Seen()
		for i, out := range outs {
			all[i] = outcome[Out]{out, seen}
		}
		return all, err
	})}
}

// Do returns the output for in, as [coalesce.Coalescer.Do] does.
func (s *sharedRead[Key, In, Out]) Do(ctx context.Context, key Key, in In) (out Out, err error) {
	reader := postgres.ReaderOf(ctx)
	shared, err := s.runs.Do(ctx, readKey[Key]{reader.Target(), key}, in)
	if err == nil {
		err = reader.Saw(shared.seen)
	}
	if err != nil {
		return out, err
	}
	return shared.out, nil
}

// sharedReads are the limits of coalesced reads of single pets, and of the same page.
// docs/performance.md has the effect of coalescing.
//
// One is under way at a time. With a second one fewer reads share each, and the
// reads of 16 connections were a tenth slower. A statement that hangs, for example
// because its backend is frozen, does not stop the reads after it: up to two more
// may run beside it, for all pages together. A pool has 12 connections by default, so
// a locked table leaves most of them to other requests.
var sharedReads = coalesce.Limits{Parallel: 1, Spare: 2}

// lookKey says what requests of a payer wait for. The value must name everything on which what they
// read depends.
type lookKey struct {
	payer int64
	what  any
}

// newLooks returns a coalescer of reads of requests that wait. Each takes a place of its payer.
func newLooks(places *admission.Pool) *sharedRead[lookKey, func(context.Context) (any, error), any] {
	return shareReads(sharedReads, withoutEnd, func(ctx context.Context, key lookKey, reads []func(context.Context) (any, error)) ([]any, error) {
		if err := places.Take(ctx, key.payer, 1); err != nil {
			return nil, err
		}
		defer places.Give(key.payer, 1)
		return firstForAll(ctx, "", reads)
	})
}

// look reads for a request that waits.
func look[Out any](ctx context.Context, s *Server, key lookKey, read func(context.Context) (Out, error)) (Out, error) {
	found, err := s.looks.Do(ctx, key, func(ctx context.Context) (any, error) { return read(ctx) })
	out, _ := found.(Out)
	return out, err
}

// firstForAll calls the first of some functions that all do the same.
func firstForAll[Out any](ctx context.Context, _ string, functions []func(context.Context) (Out, error)) ([]Out, error) {
	out, err := functions[0](ctx)
	return slices.Repeat([]Out{out}, len(functions)), err
}

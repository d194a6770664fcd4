package api

import (
	"context"
	"math"
	"slices"

	"petstore/internal/admission"
	"petstore/internal/coalesce"
	"petstore/internal/postgres"
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
func shareReads[Key comparable, In, Out any](limits coalesce.Limits, run func(context.Context, Key, []In) ([]Out, error)) *sharedRead[Key, In, Out] {
	return &sharedRead[Key, In, Out]{coalesce.New(limits, func(ctx context.Context, key readKey[Key], ins []In) ([]outcome[Out], error) {
		ctx, reader := postgres.ReaderOf(ctx).Shared(ctx)
		outs, err := run(ctx, key.key, ins)
		all, seen := make([]outcome[Out], len(outs)), reader.Seen()
		for i, out := range outs {
			all[i] = outcome[Out]{out, seen}
		}
		return all, err
	})}
}

// taking lets each run take a part of a resource, which depends on the key.
func (s *sharedRead[Key, In, Out]) taking(resource *admission.Pool, part func(Key) (payer, weight int64)) *sharedRead[Key, In, Out] {
	s.runs.Enter = func(ctx context.Context, key readKey[Key]) (leave func(), err error) {
		payer, weight := part(key.key)
		return func() { resource.Give(payer, weight) }, resource.Take(ctx, payer, weight)
	}
	return s
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

// results returns the rows of each of n statements that share a round trip, or the first
// error.
func results[Row any](n int, read func(func(int, []Row, error))) (all [][]Row, err error) {
	all = make([][]Row, n)
	read(func(i int, rows []Row, failed error) {
		if all[i] = rows; err == nil {
			err = failed
		}
	})
	return all, err
}

// sharedLimits are the limits of coalesced reads of single pets.
// docs/performance.md has the effect of coalescing.
//
// One is under way at a time. With a second one fewer reads share each, and the
// reads of 16 connections were a tenth slower. A statement that hangs, for example
// because its backend is frozen, does not stop the reads after it: up to two more
// may run beside it. A pool has 12 connections by default, so a locked table leaves
// most of them to other requests.
var sharedLimits = coalesce.Limits{Parallel: 1, Spare: 2}

// placedLimits are the limits of reads that take a place of their payer. The places limit how many
// run beside those that hang. A common limit would let one payer take that from the others.
var placedLimits = coalesce.Limits{Parallel: 1, Spare: math.MaxInt}

// placedKey says what requests of a payer read. The value must name everything on which that depends.
type placedKey struct {
	payer  int64
	what   any
	weight int64 // of a read, in the resource of which it takes a part
}

// placedReads are reads that take a part of a resource. Requests for the same share one.
type placedReads struct {
	*sharedRead[placedKey, func(context.Context) (any, error), any]
}

// newPlacedReads returns the reads that take parts of a resource.
func newPlacedReads(limits coalesce.Limits, resource *admission.Pool) placedReads {
	return placedReads{shareReads(limits, func(ctx context.Context, _ placedKey, reads []func(context.Context) (any, error)) ([]any, error) {
		out, err := reads[0](ctx)
		return slices.Repeat([]any{out}, len(reads)), err
	}).taking(resource, func(key placedKey) (payer, weight int64) { return key.payer, key.weight })}
}

// readPlaced reads what a key names. The read also encodes what may be large. It must not call readPlaced,
// because it may have the last place.
func readPlaced[Out any](ctx context.Context, reads placedReads, key placedKey, read func(context.Context) (Out, error)) (Out, error) {
	found, err := reads.Do(ctx, key, func(ctx context.Context) (any, error) { return read(ctx) })
	out, _ := found.(Out)
	return out, err
}

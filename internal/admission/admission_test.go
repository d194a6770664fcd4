package admission_test

import (
	"context"
	"errors"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"petstore/internal/admission"
	"petstore/internal/tools/need"
)

// Payers.
const a, b, c, d, e int64 = 1, 2, 3, 4, 5

// TestTakeWithoutWait checks who gets a part of a resource for which nobody waits.
func TestTakeWithoutWait(t *testing.T) {
	t.Parallel()
	pool := admission.New(admission.Resource{Total: 10, Share: 4})
	for i, step := range []struct {
		payer  int64
		weight int64 // negative: given back
		want   error
	}{
		{a, 3, nil},
		{a, 2, admission.ErrShare},
		{a, 1, nil},
		{b, 4, nil},
		{c, 3, admission.ErrTotal},
		{c, 2, nil},
		{d, 1, admission.ErrTotal},
		{d, math.MaxInt64, admission.ErrTotal},
		{a, math.MaxInt64, admission.ErrShare},
		{a, 1, admission.ErrShare}, // the share is checked before the total
		{b, -4, nil},
		{c, 3, admission.ErrShare},
		{a, -4, nil},
		{a, 8, nil}, // a payer without anything may exceed its share
		{a, 1, admission.ErrShare},
		{c, -2, nil},
		{a, -8, nil},
		{b, 11, nil}, // nothing is taken, so the total may be exceeded
		{c, 1, admission.ErrTotal},
	} {
		if step.weight < 0 {
			pool.Give(step.payer, -step.weight)
			continue
		}
		if got := pool.Take(t.Context(), step.payer, step.weight); !errors.Is(got, step.want) {
			t.Errorf("step %d: Take(%d, %d) = %v, want %v", i, step.payer, step.weight, got, step.want)
		}
	}
}

// TestDefaultShare checks that a payer may hold a quarter, rounded up.
func TestDefaultShare(t *testing.T) {
	t.Parallel()
	for total, want := range map[int]int{1: 1, 2: 1, 4: 1, 5: 2, 8: 2, 1000: 250} {
		pool := admission.New(admission.Resource{}.Of(total))
		got := 0
		for pool.Take(t.Context(), a, 1) == nil {
			got++
		}
		if got != want {
			t.Errorf("one payer got %d of %d, want %d", got, total, want)
		}
	}
}

// queue starts requests that wait, one after the other, and records who gets a part.
type queue struct {
	pool    *admission.Pool
	granted []int64
	errs    []error
}

func (q *queue) start(ctx context.Context, payer int64, weight int64) {
	go func() {
		if err := q.pool.Take(ctx, payer, weight); err != nil {
			q.errs = append(q.errs, err)
		} else {
			q.granted = append(q.granted, payer)
		}
	}()
	synctest.Wait()
}

func (q *queue) give(payer int64, weight int64) {
	q.pool.Give(payer, weight)
	synctest.Wait()
}

// TestTurns checks that free places go to the payers in turn.
func TestTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := &queue{pool: admission.New(admission.Resource{Total: 1, Wait: admission.Forever})}
		for _, payer := range []int64{a, a, a, a, b, b, c} {
			q.start(t.Context(), payer, 1)
		}
		for len(q.granted) < 7 {
			q.give(q.granted[len(q.granted)-1], 1)
		}
		need.Same(t, []int64{a, a, b, c, a, b, a}, q.granted, "granted")
	})
}

// TestLargePart checks that small parts of others do not hold up a large one, and that a
// payer at its share holds up nobody.
func TestLargePart(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		q := &queue{pool: admission.New(admission.Resource{Total: 4, Share: 3, Wait: admission.Forever})}
		q.start(t.Context(), a, 2)
		q.start(t.Context(), a, 2) // above its share
		q.start(t.Context(), b, 1)
		q.start(t.Context(), c, 3) // above the total
		q.start(t.Context(), d, 2) // fits, but c is first
		q.start(t.Context(), e, 4)
		need.Same(t, []int64{a, b}, q.granted, "granted before a part is free")
		q.give(b, 1)
		if len(q.granted) != 2 {
			t.Errorf("granted %d, but nothing fits", q.granted[2:])
		}
		q.give(a, 2) // its second request has the first turn
		q.give(a, 2)
		q.give(c, 3)
		q.give(d, 2)
		need.Same(t, []int64{a, b, a, c, d, e}, q.granted, "granted at the end")
	})
}

// TestWaitTooLong checks the error of a request that waits too long, which names the resource, and
// that the request leaves its place to others.
func TestWaitTooLong(t *testing.T) {
	t.Parallel()
	gone := errors.New("the client is gone")
	for name, test := range map[string]struct {
		holds []int64 // the payers that take 1 of 2 before
		payer int64
		wait  time.Duration
		want  error
	}{
		"the payer itself has its share": {[]int64{a}, a, time.Second, admission.ErrShare},
		"others have everything":         {[]int64{b, c}, a, time.Second, admission.ErrTotal},
		"the context ends first":         {[]int64{b, c}, a, time.Hour, gone},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				ctx, cancel := context.WithTimeoutCause(t.Context(), 2*time.Second, gone)
				defer cancel()
				q := &queue{pool: admission.New(admission.Resource{Name: "of these", Total: 2, Share: 1, Wait: test.wait})}
				for _, holder := range test.holds {
					q.start(ctx, holder, 1)
				}
				began := time.Now()
				if err := q.pool.Take(ctx, test.payer, 1); !errors.Is(err, test.want) || !strings.Contains(err.Error(), "of these") {
					t.Errorf("Take = %v, want %v of these", err, test.want)
				}
				if waited := time.Since(began); waited != min(test.wait, 2*time.Second) {
					t.Errorf("Take waited %s", waited)
				}
				for _, holder := range test.holds {
					q.give(holder, 1)
				}
				if err := q.pool.Take(t.Context(), test.payer, 1); err != nil {
					t.Errorf("Take when everything is free = %v", err)
				}
			})
		})
	}
}

// TestRace checks that concurrent payers never hold more than the total or their share. Some
// requests give up. At the end, everything is free.
func TestRace(t *testing.T) {
	t.Parallel()
	const payers, total, share = 8, 20, 6
	pool := admission.New(admission.Resource{Total: total, Share: share, Wait: admission.Forever})
	var mu sync.Mutex
	var all, mostOfAll, mostOfOne int64
	held := make([]int64, payers)
	add := func(payer, weight int64) {
		mu.Lock()
		defer mu.Unlock()
		held[payer] += weight
		all += weight
		mostOfAll, mostOfOne = max(mostOfAll, all), max(mostOfOne, slices.Max(held))
	}
	var running sync.WaitGroup
	for payer := range int64(payers) {
		for range 3 {
			running.Go(func() {
				for i := range 500 {
					ctx, cancel := context.WithCancel(t.Context())
					if i%3 == 0 {
						go cancel()
					}
					if pool.Take(ctx, payer, 3) == nil {
						add(payer, 3)
						runtime.Gosched() // others may take now
						add(payer, -3)
						pool.Give(payer, 3)
					}
					cancel()
				}
			})
		}
	}
	running.Wait()
	if mostOfAll > total || mostOfOne > share {
		t.Errorf("at most %d of %d were taken, and %d of %d by one payer", mostOfAll, total, mostOfOne, share)
	}
	for payer := range int64(payers) { // waits for nothing, because everything is free
		if err := pool.Take(t.Context(), payer, 1); err != nil {
			t.Errorf("Take at the end = %v", err)
		}
	}
}

// TestRetryAfter lets 140 clients of one payer take the only place, each for 350 ms, as new
// sandboxes of an account do. Clients that are refused come again when the error says, rounded
// up to seconds as in Retry-After. All must succeed with eight retries, and so must a client of
// another payer at its first attempt.
func TestRetryAfter(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		const clients, mostRetries, hold = 140, 8, 350 * time.Millisecond
		pool := admission.New(admission.Resource{Total: 2, Share: 1, Wait: 3 * time.Second})
		var mu sync.Mutex
		tries := map[int]int{} // the number of clients by their attempts
		var running sync.WaitGroup
		for range clients {
			running.Go(func() {
				for attempt := 1; ; attempt++ {
					err := pool.Take(t.Context(), a, 1)
					if err == nil {
						time.Sleep(hold) //nolint:forbidigo // the clock of the test
						pool.Give(a, 1)
						mu.Lock()
						tries[attempt]++
						mu.Unlock()
						return
					}
					refused, is := errors.AsType[*admission.RefusedError](err)
					if !is || !errors.Is(err, admission.ErrShare) || refused.RetryAfter > admission.MaxRetryAfter {
						t.Errorf("the error is %#v", err)
						return
					}
					time.Sleep(max(refused.RetryAfter, 1).Truncate(time.Second) + time.Second) //nolint:forbidigo // the clock of the test
				}
			})
		}
		time.Sleep(time.Second) //nolint:forbidigo // the clock of the test
		if err := pool.Take(t.Context(), b, 1); err != nil {
			t.Errorf("another payer: %v", err)
		}
		pool.Give(b, 1)
		running.Wait()
		for attempts, count := range tries {
			if attempts > 1+mostRetries {
				t.Errorf("%d clients needed %d attempts", count, attempts)
			}
		}
		t.Logf("clients by attempts: %v", tries)
	})
}

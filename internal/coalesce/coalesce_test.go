package coalesce_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"petstore/internal/coalesce"
)

const timeout = 10 * time.Second

// gate lets a test hold runs and see what they were given.
type gate struct {
	runs chan []int    // the inputs of each run, as it begins
	open chan struct{} // each receive lets one run end
}

func newGate() *gate { return &gate{runs: make(chan []int, 100), open: make(chan struct{})} }

// double answers twice each input, once it is let.
func (g *gate) double(_ context.Context, _ string, ins []int) ([]int, error) {
	g.runs <- append([]int(nil), ins...)
	<-g.open
	outs := make([]int, len(ins))
	for i, in := range ins {
		outs[i] = 2 * in
	}
	return outs, nil
}

// TestCallsThatWaitGoTogether: the first call runs alone and at once; all that
// come meanwhile are one run, each answered for itself.
func TestCallsThatWaitGoTogether(t *testing.T) {
	t.Parallel()
	g := newGate()
	b := coalesce.New(1, timeout, g.double)
	var calls sync.WaitGroup
	call := func(in int) {
		calls.Go(func() {
			if out, err := b.Do(t.Context(), "key", in); err != nil || out != 2*in {
				t.Errorf("Do(%d) = %d, %v", in, out, err)
			}
		})
	}
	call(1)
	if first := <-g.runs; len(first) != 1 {
		t.Fatalf("the first run had %v", first)
	}
	const others = 50
	for i := range others {
		call(10 + i)
	}
	seen := 0
	for seen < others { // those that came too late for one run are in the next
		g.open <- struct{}{}
		seen += len(<-g.runs)
	}
	g.open <- struct{}{}
	calls.Wait()
	if seen != others {
		t.Errorf("%d calls ran", seen)
	}
}

// TestKeysDoNotWaitForEachOther.
func TestKeysDoNotWaitForEachOther(t *testing.T) {
	t.Parallel()
	g := newGate()
	b := coalesce.New(1, timeout, g.double)
	var calls sync.WaitGroup
	for i, key := range []string{"a", "b", "c"} {
		calls.Go(func() {
			if out, err := b.Do(t.Context(), key, i); err != nil || out != 2*i {
				t.Errorf("Do(%s) = %d, %v", key, out, err)
			}
		})
	}
	for range 3 {
		<-g.runs // all have begun, and none has ended
	}
	close(g.open)
	calls.Wait()
}

// TestParallelRuns: as many as allowed and no more.
func TestParallelRuns(t *testing.T) {
	t.Parallel()
	var running, most atomic.Int64
	b := coalesce.New(2, timeout, func(_ context.Context, _ struct{}, ins []int) ([]int, error) {
		now := running.Add(1)
		for seen := most.Load(); now > seen && !most.CompareAndSwap(seen, now); seen = most.Load() {
		}
		defer running.Add(-1)
		return ins, nil
	})
	var calls sync.WaitGroup
	for i := range 64 {
		calls.Go(func() {
			for j := range 200 {
				if out, err := b.Do(t.Context(), struct{}{}, i*1000+j); err != nil || out != i*1000+j {
					t.Errorf("%d, %v", out, err)
				}
			}
		})
	}
	calls.Wait()
	if most.Load() > 2 {
		t.Errorf("%d runs at once", most.Load())
	}
}

// TestLeaving: a call whose context ends leaves. Nothing is done for it when its
// run begins later, and the others are answered, each for itself.
func TestLeaving(t *testing.T) {
	t.Parallel()
	g := newGate()
	b := coalesce.New(1, timeout, g.double)
	var first, others sync.WaitGroup
	first.Go(func() { _, _ = b.Do(t.Context(), "key", 1) })
	<-g.runs
	// Whoever comes with a context that has ended waits for nothing, and by then
	// has taken a place.
	ended, end := context.WithCancel(t.Context())
	end()
	for in := 100; in < 105; in++ {
		others.Go(func() {
			if out, err := b.Do(t.Context(), "key", in); err != nil || out != 2*in {
				t.Errorf("Do(%d) = %d, %v", in, out, err)
			}
		})
		if _, err := b.Do(ended, "key", -in); !errors.Is(err, context.Canceled) {
			t.Errorf("%v", err)
		}
	}
	g.open <- struct{}{}
	first.Wait()
	var seen []int
	for len(seen) < 5 { // those that came too late for one run are in the next
		seen = append(seen, <-g.runs...)
		g.open <- struct{}{}
	}
	others.Wait()
	for _, in := range seen {
		if in < 0 {
			t.Errorf("a call that had left was run: %v", seen)
		}
	}
	// When all have left, the key is as new.
	first.Go(func() { _, _ = b.Do(t.Context(), "key", 1) })
	<-g.runs
	if _, err := b.Do(ended, "key", -1); !errors.Is(err, context.Canceled) {
		t.Errorf("%v", err)
	}
	close(g.open)
	first.Wait()
	if out, err := b.Do(t.Context(), "key", 7); err != nil || out != 14 {
		t.Errorf("%d, %v", out, err)
	}
}

// TestFailures: an error is that of all in the run, a panic and a wrong number
// of answers are errors, and the next run is not touched by them.
func TestFailures(t *testing.T) {
	t.Parallel()
	failure := errors.New("no")
	b := coalesce.New(1, timeout, func(_ context.Context, _ string, ins []string) ([]string, error) {
		switch ins[0] {
		case "fail":
			return nil, failure
		case "panic":
			panic("oh")
		case "lose":
			return nil, nil
		}
		return ins, nil
	})
	if _, err := b.Do(t.Context(), "k", "fail"); !errors.Is(err, failure) {
		t.Errorf("%v", err)
	}
	for in, want := range map[string]string{"panic": "panic: oh", "lose": "0 answers to 1 calls"} {
		if _, err := b.Do(t.Context(), "k", in); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", in, err)
		}
	}
	if out, err := b.Do(t.Context(), "k", "well"); err != nil || out != "well" {
		t.Errorf("%q, %v", out, err)
	}
}

// TestTimeLimit: a run of calls that waited is bounded, though none of their
// contexts is.
func TestTimeLimit(t *testing.T) {
	t.Parallel()
	begun, release := make(chan struct{}), make(chan struct{})
	b := coalesce.New(1, time.Millisecond, func(ctx context.Context, _ string, ins []string) (bounded []bool, err error) {
		if ins[0] == "first" {
			begun <- struct{}{}
			<-release
		} else if _, ok := ctx.Deadline(); ok {
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return make([]bool, len(ins)), nil
	})
	for waited := false; !waited; { // it may come when the first has just ended
		var calls sync.WaitGroup
		calls.Go(func() { _, _ = b.Do(t.Context(), "k", "first") })
		<-begun
		calls.Go(func() {
			_, err := b.Do(t.Context(), "k", "second")
			if waited = err != nil; waited && !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%v", err)
			}
		})
		release <- struct{}{}
		calls.Wait()
	}
}

func BenchmarkDo(b *testing.B) {
	for _, callers := range []int{1, 64} {
		b.Run(fmt.Sprintf("callers=%d", callers), func(b *testing.B) {
			b.ReportAllocs()
			b.SetParallelism(callers)
			coalescer := coalesce.New(2, timeout, func(_ context.Context, _ struct{}, ins []int) ([]int, error) { return ins, nil })
			b.RunParallel(func(pb *testing.PB) {
				for pb.Next() {
					if _, err := coalescer.Do(b.Context(), struct{}{}, 1); err != nil {
						b.Fatal(err)
					}
				}
			})
		})
	}
}

// TestAGroupHasItsFirstCallsValues: what waited runs with the values of the
// context that came first, such as the span that it belongs to, and not its end.
func TestAGroupHasItsFirstCallsValues(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		type caller struct{}
		var ran []any
		open := make(chan struct{})
		b := coalesce.New(1, timeout, func(ctx context.Context, _ string, ins []int) ([]int, error) {
			ran = append(ran, ctx.Value(caller{}))
			<-open
			return ins, ctx.Err()
		})
		call := func(ctx context.Context, name string, want error) {
			go func() {
				if _, err := b.Do(context.WithValue(ctx, caller{}, name), "key", 0); !errors.Is(err, want) {
					t.Errorf("the call of %s: %v, want %v", name, err, want)
				}
			}()
			synctest.Wait()
		}
		leaving, leave := context.WithCancel(t.Context())
		call(t.Context(), "alone", nil)
		call(leaving, "first", context.Canceled)
		call(t.Context(), "second", nil)
		leave()
		synctest.Wait()
		close(open)
		synctest.Wait()
		if want := []any{"alone", "first"}; !slices.Equal(ran, want) {
			t.Errorf("the runs have the values of %v, want %v", ran, want)
		}
	})
}

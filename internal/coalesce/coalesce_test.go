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

// one allows one run at a time per key.
var one = coalesce.Limits{Parallel: 1}

// lookAfter is the time after which a call that waits looks at its context.
const lookAfter = 250 * time.Millisecond

// TestParallelRuns: as many runs as allowed, and no more.
func TestParallelRuns(t *testing.T) {
	t.Parallel()
	var running, most atomic.Int64
	b := coalesce.New(coalesce.Limits{Parallel: 2}, func(_ context.Context, _ struct{}, ins []int) ([]int, error) {
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
		t.Errorf("%d concurrent runs", most.Load())
	}
}

// TestFailures: all calls of a run share its error. A panic and a wrong number of
// outputs are errors. The next run is not affected.
func TestFailures(t *testing.T) {
	t.Parallel()
	failure := errors.New("no")
	b := coalesce.New(one, func(_ context.Context, _ string, ins []string) ([]string, error) {
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
	for in, want := range map[string]string{"panic": "panic: oh", "lose": "0 outputs for 1 inputs"} {
		if _, err := b.Do(t.Context(), "k", in); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", in, err)
		}
	}
	if out, err := b.Do(t.Context(), "k", "well"); err != nil || out != "well" {
		t.Errorf("%q, %v", out, err)
	}
}

// TestAGroupHasItsFirstCallsValues: a run has the context values of its first call,
// such as its span, but not its cancellation.
func TestAGroupHasItsFirstCallsValues(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		type caller struct{}
		var ran []any
		open := make(chan struct{})
		b := coalesce.New(one, func(ctx context.Context, _ string, ins []int) ([]int, error) {
			ran = append(ran, ctx.Value(caller{}))
			<-open
			return ins, ctx.Err()
		})
		call := func(ctx context.Context, name string, want error) {
			go func() {
				if _, err := b.Do(context.WithValue(ctx, caller{}, name), "key", 0); !errors.Is(err, want) {
					t.Errorf("call %s: %v, want %v", name, err, want)
				}
			}()
			synctest.Wait()
		}
		leaving, leave := context.WithCancel(t.Context())
		call(t.Context(), "alone", nil)
		call(leaving, "first", context.Canceled)
		call(t.Context(), "second", nil)
		leave()
		<-time.After(lookAfter) // takes no real time in a bubble
		synctest.Wait()
		close(open)
		synctest.Wait()
		if want := []any{"alone", "first"}; !slices.Equal(ran, want) {
			t.Errorf("the runs have the context values of %v, want %v", ran, want)
		}
	})
}

// bubble steps through runs in the fake time of synctest.
type bubble struct {
	t         *testing.T
	coalescer *coalesce.Coalescer[int, int, int]

	mu    sync.Mutex
	held  map[int]chan struct{} // by first input of the run
	began []string              // inputs of each run that has started
	ended []string              // inputs of each run whose context has ended
	left  []string              // input and error of each failed call
	done  int                   // number of calls that have returned
}

// inBubble tests a coalescer whose runs last until release is called for their
// first input, or until their context ends.
func inBubble(t *testing.T, limits coalesce.Limits, test func(b *bubble)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) {
		t.Helper()
		b := &bubble{t: t, held: map[int]chan struct{}{}}
		b.coalescer = coalesce.New(limits, func(ctx context.Context, _ int, ins []int) ([]int, error) {
			b.note(func() { b.began = append(b.began, fmt.Sprint(ins)) })
			select {
			case <-b.gate(ins[0]):
			case <-ctx.Done():
				b.note(func() { b.ended = append(b.ended, fmt.Sprint(ins)) })
			}
			return ins, ctx.Err()
		})
		test(b)
	})
}

// note changes the records of the bubble.
func (b *bubble) note(change func()) {
	b.mu.Lock()
	defer b.mu.Unlock()
	change()
}

// gate returns the channel that ends the run with this first input when closed.
func (b *bubble) gate(in int) chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.held[in] == nil {
		b.held[in] = make(chan struct{})
	}
	return b.held[in]
}

// release ends the runs with these first inputs.
func (b *bubble) release(ins ...int) {
	for _, in := range ins {
		close(b.gate(in))
		synctest.Wait()
	}
}

// pass advances the fake time.
func (b *bubble) pass(d time.Duration) {
	<-time.After(d) // takes no real time in a bubble
	synctest.Wait()
}

// call calls Do and returns when the call waits or has returned. Inputs in the same
// hundred share a key.
func (b *bubble) call(ctx context.Context, in int) {
	go func() {
		out, err := b.coalescer.Do(ctx, in/100, in)
		if err == nil && out != in {
			b.t.Errorf("Do(%d) = %d", in, out)
		}
		b.note(func() {
			b.done++
			if err != nil {
				b.left = append(b.left, fmt.Sprint(in, " ", err))
			}
		})
	}()
	synctest.Wait()
}

// calls calls Do for each input in sequence.
func (b *bubble) calls(ins ...int) {
	for _, in := range ins {
		b.call(b.t.Context(), in)
	}
}

// want fails the test unless exactly these runs have started.
func (b *bubble) want(begun ...string) {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if !slices.Equal(b.began, begun) {
		b.t.Errorf("the started runs are %v, want %v", b.began, begun)
	}
}

// wantDone fails the test unless this many calls have returned, and these of them
// with an error.
func (b *bubble) wantDone(calls int, left ...string) {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.done != calls || !slices.Equal(b.left, left) {
		b.t.Errorf("%d calls have returned, %v with an error; want %d, %v", b.done, b.left, calls, left)
	}
}

// wantEnded fails the test unless the contexts of exactly these runs have ended.
func (b *bubble) wantEnded(runs ...string) {
	b.t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if !slices.Equal(b.ended, runs) {
		b.t.Errorf("the runs with an ended context are %v, want %v", b.ended, runs)
	}
}

// TestRuns steps through the runs of six calls for each limit.
func TestRuns(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		name   string
		limits coalesce.Limits
		begun  []string   // while the first runs are blocked
		after  [][]string // runs that start after the run of 1, of 2 and so on ends
	}{
		{"one at a time", one, []string{"[1]"}, [][]string{{"[2 3 4 5 6]"}}},
		{"two at a time", coalesce.Limits{Parallel: 2}, []string{"[1]", "[2]"}, [][]string{{"[3 4 5 6]"}, nil}},
		{"three at a time", coalesce.Limits{Parallel: 3}, []string{"[1]", "[2]", "[3]"}, [][]string{{"[4 5 6]"}, nil, nil}},
		{"two inputs per run", coalesce.Limits{Parallel: 1, Inputs: 2}, []string{"[1]"}, [][]string{{"[2 3]"}, {"[4 5]"}, nil, {"[6]"}}},
		{"two inputs per run for now", coalesce.Limits{Parallel: 1, Inputs: 3, InputsNow: func() int { return 2 }}, []string{"[1]"}, [][]string{{"[2 3]"}, {"[4 5]"}, nil, {"[6]"}}},
		{"one input per run", coalesce.Limits{Parallel: 2, Inputs: 1}, []string{"[1]", "[2]"}, [][]string{{"[3]"}, {"[4]"}, {"[5]"}, {"[6]"}}},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			inBubble(t, test.limits, func(b *bubble) {
				b.calls(1, 2, 3, 4, 5, 6)
				b.pass(time.Hour) // no spare run starts, however slow the others are
				begun := test.begun
				b.want(begun...)
				for i, begin := range test.after {
					b.release(1 + i)
					begun = append(begun, begin...)
					b.want(begun...)
				}
				for in := len(test.after) + 1; in <= 6; in++ {
					b.release(in)
				}
				b.want(begun...)
				b.wantDone(6)
			})
		})
	}
}

// TestSpareRuns: a hanging run delays waiting calls by 250 ms, and later calls not
// at all. At most Spare runs start beside hanging runs.
func TestSpareRuns(t *testing.T) {
	t.Parallel()
	inBubble(t, coalesce.Limits{Parallel: 1, Spare: 2}, func(b *bubble) {
		b.calls(1, 2, 3)
		b.pass(249 * time.Millisecond)
		b.want("[1]")
		b.pass(time.Millisecond)
		b.want("[1]", "[2 3]")
		b.calls(4) // waits for the run of 2 and 3, which is not slow yet
		b.want("[1]", "[2 3]")
		b.release(2)
		b.want("[1]", "[2 3]", "[4]")
		b.release(4)
		b.calls(5) // runs at once, although 1 still hangs
		b.want("[1]", "[2 3]", "[4]", "[5]")

		// 5 hangs too, then 6. After that no run starts.
		b.calls(6)
		b.pass(250 * time.Millisecond)
		b.want("[1]", "[2 3]", "[4]", "[5]", "[6]")
		b.pass(time.Hour)
		b.calls(7, 8)
		b.pass(time.Hour)
		b.calls(9)
		b.want("[1]", "[2 3]", "[4]", "[5]", "[6]")
		b.release(1)
		b.want("[1]", "[2 3]", "[4]", "[5]", "[6]", "[7 8 9]")
		b.calls(10)
		b.release(5) // while the run of 7 to 9 is not slow yet
		b.want("[1]", "[2 3]", "[4]", "[5]", "[6]", "[7 8 9]")
		b.pass(250 * time.Millisecond)
		b.want("[1]", "[2 3]", "[4]", "[5]", "[6]", "[7 8 9]", "[10]")
		b.release(6, 7, 10)
		b.wantDone(10)
	})
}

// TestRunsEnter: no spare run starts beside a run that waits before it enters, or within 250 ms after
// that. Calls that wait for it look at their contexts. A run that cannot enter fails.
func TestRunsEnter(t *testing.T) {
	t.Parallel()
	inBubble(t, coalesce.Limits{Parallel: 1, Spare: 2}, func(b *bubble) {
		entrance := make(chan error)
		note := func(what string) { b.note(func() { b.began = append(b.began, what) }) }
		b.coalescer.Enter = func(context.Context, int) (func(), error) {
			note("waits")
			return func() { note("leaves") }, <-entrance
		}
		enter := func(err error) {
			entrance <- err
			synctest.Wait()
		}
		b.calls(1, 2)
		leaving, leave := context.WithTimeout(b.t.Context(), time.Second)
		defer leave()
		b.call(leaving, 3)
		b.pass(time.Hour)
		b.wantDone(1, "3 context deadline exceeded")
		b.pass(lookAfter / 2)
		enter(nil)
		b.pass(lookAfter - 1)
		b.want("waits", "[1]")
		b.pass(1)
		b.want("waits", "[1]", "waits")
		b.calls(4)
		b.pass(time.Hour)
		enter(errors.New("full"))
		b.wantDone(2, "3 context deadline exceeded", "2 full")
		b.want("waits", "[1]", "waits", "waits") // the last one is of 4
		enter(nil)
		b.release(4, 1)
		b.want("waits", "[1]", "waits", "waits", "[4]", "leaves", "leaves")
		b.wantDone(4, "3 context deadline exceeded", "2 full")
	})
}

// TestNoSpareRunIsLeftOver: the end of a run that is not spare leaves no place for another
// spare run.
func TestNoSpareRunIsLeftOver(t *testing.T) {
	t.Parallel()
	inBubble(t, coalesce.Limits{Parallel: 1, Spare: 1}, func(b *bubble) {
		b.calls(1)
		b.release(1)
		b.calls(2, 3)
		b.pass(250 * time.Millisecond)
		b.want("[1]", "[2]", "[3]")
		b.calls(4)
		b.pass(time.Hour)
		b.want("[1]", "[2]", "[3]")
		b.release(2)
		b.want("[1]", "[2]", "[3]", "[4]")
		b.release(3, 4)
		b.wantDone(4)
	})
}

// TestSpareRunsTakeTurns: each spare run needs a slow run of its own.
func TestSpareRunsTakeTurns(t *testing.T) {
	t.Parallel()
	inBubble(t, coalesce.Limits{Parallel: 2, Spare: 2, Inputs: 1}, func(b *bubble) {
		b.calls(1)
		b.pass(100 * time.Millisecond)
		b.calls(2, 3, 4, 5)
		b.pass(149 * time.Millisecond)
		b.want("[1]", "[2]")
		b.pass(time.Millisecond)
		b.want("[1]", "[2]", "[3]")
		b.pass(99 * time.Millisecond)
		b.want("[1]", "[2]", "[3]")
		b.pass(time.Millisecond)
		b.want("[1]", "[2]", "[3]", "[4]")
		b.release(1, 2, 3, 4, 5)
		b.want("[1]", "[2]", "[3]", "[4]", "[5]")
		b.wantDone(5)
	})
}

// TestSpareRunsOfManyKeys: spare runs are limited over all keys, however many hang.
// A key learns when a spare run of another key has ended.
func TestSpareRunsOfManyKeys(t *testing.T) {
	t.Parallel()
	inBubble(t, coalesce.Limits{Parallel: 1, Spare: 2}, func(b *bubble) {
		b.calls(101)
		b.pass(time.Millisecond)
		b.calls(201, 301, 102, 202)
		b.pass(250 * time.Millisecond)
		b.calls(302)
		b.pass(time.Hour)
		b.want("[101]", "[201]", "[301]", "[102]", "[202]")
		b.release(102)
		b.pass(250 * time.Millisecond)
		b.want("[101]", "[201]", "[301]", "[102]", "[202]", "[302]")
		b.release(101)
		b.calls(103) // a key without a run
		b.want("[101]", "[201]", "[301]", "[102]", "[202]", "[302]", "[103]")
		b.release(103, 201, 202, 301, 302)
		b.wantDone(7)
	})
}

// TestRunsEndWithTheirCalls: a run skips the calls that have left before it. Its context ends when all its
// calls have left, and not earlier.
func TestRunsEndWithTheirCalls(t *testing.T) {
	t.Parallel()
	inBubble(t, one, func(b *bubble) {
		leave := map[int]context.CancelFunc{}
		call := func(in int) {
			ctx, cancel := context.WithCancel(b.t.Context())
			leave[in] = func() {
				cancel()
				b.pass(lookAfter)
			}
			b.call(ctx, in)
		}
		for in := 1; in <= 5; in++ {
			call(in)
		}
		leave[5]() // before its run starts
		b.release(1)
		b.want("[1]", "[2 3 4]")
		call(6)
		leave[2]()
		leave[4]()
		b.pass(time.Hour)
		b.wantEnded()
		leave[3]() // the last call of its run
		b.wantEnded("[2 3 4]")
		b.want("[1]", "[2 3 4]", "[6]")
		leave[6]() // the only call of its run
		b.wantEnded("[2 3 4]", "[6]")
		call(7) // runs the group itself
		b.wantEnded("[2 3 4]", "[6]")
		call(8)
		leave[8]() // the only call that waits
		leave[7]()
		b.wantEnded("[2 3 4]", "[6]", "[7]")
		call(9) // runs at once
		call(10)
		call(11) // gets its own output, although the call before it leaves
		leave[10]()
		b.release(9, 11)
		b.want("[1]", "[2 3 4]", "[6]", "[7]", "[9]", "[11]")
		var left []string
		for _, in := range []int{5, 2, 4, 3, 6, 8, 7, 10} {
			left = append(left, fmt.Sprint(in, " context canceled"))
		}
		b.wantDone(11, left...)
	})
}

// watched is a context that counts the calls of Done.
type watched struct {
	context.Context

	waits atomic.Int64
}

func (w *watched) Done() <-chan struct{} {
	w.waits.Add(1)
	return w.Context.Done()
}

// TestCallsLookAtTheirContextLate: a short wait needs no timer, and a long one ends at the
// deadline.
func TestCallsLookAtTheirContextLate(t *testing.T) {
	t.Parallel()
	inBubble(t, one, func(b *bubble) {
		in := 1
		call := func(timeout time.Duration) *watched {
			ctx, cancel := context.WithTimeout(b.t.Context(), timeout)
			b.t.Cleanup(cancel)
			w := &watched{Context: ctx}
			b.call(w, in)
			in++
			return w
		}
		call(time.Hour) // runs at once
		short := call(time.Hour)
		b.pass(lookAfter - 1)
		b.release(1, 2)
		if waits := short.waits.Load(); waits != 0 {
			b.t.Errorf("a short wait called Done %d times", waits)
		}
		call(time.Hour)
		first, second := call(lookAfter/2), call(lookAfter/2+1) // share a run
		b.pass(lookAfter / 2)
		b.wantDone(3, "4 context deadline exceeded")
		b.pass(1)
		b.wantDone(4, "4 context deadline exceeded", "5 context deadline exceeded")
		if first.waits.Load() != 1 || second.waits.Load() != 1 {
			b.t.Errorf("long waits called Done %d and %d times", first.waits.Load(), second.waits.Load())
		}
		b.release(3)
		b.wantDone(5, "4 context deadline exceeded", "5 context deadline exceeded")
	})
}

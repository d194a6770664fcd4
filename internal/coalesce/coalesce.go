// Package coalesce lets calls that come at the same time share one run. Nobody is
// made to wait for company: a call that finds nothing under way runs at once and
// alone, and those that arrive meanwhile go together in the next run.
package coalesce

import (
	"context"
	"fmt"
	"runtime/debug"
	"sync"
	"time"
)

// Coalescer runs calls, together where they have the same key and would wait
// anyway. It is safe for concurrent use.
type Coalescer[Key comparable, In, Out any] struct {
	run      func(context.Context, Key, []In) ([]Out, error)
	parallel int
	timeout  time.Duration

	mu    sync.Mutex
	lanes map[Key]*lane[In, Out] // of the keys that have a run under way
}

// New returns a Coalescer of a function that answers each input by the output at
// the same index, or all of them by an error. At most parallel runs of one key
// are under way at once. A run of calls that waited lasts no longer than the
// timeout, and one of a call alone no longer than that call's context.
func New[Key comparable, In, Out any](parallel int, timeout time.Duration, run func(context.Context, Key, []In) ([]Out, error)) *Coalescer[Key, In, Out] {
	return &Coalescer[Key, In, Out]{run: run, parallel: parallel, timeout: timeout, lanes: map[Key]*lane[In, Out]{}}
}

// lane is what happens to one key.
type lane[In, Out any] struct {
	running int
	waiting *group[In, Out] // nil: nobody
}

// group is the calls of one run.
type group[In, Out any] struct {
	ctx   context.Context // of the first call, without its end
	calls []call[In]      // while they wait
	ins   []In            // of those that are still there when the run begins
	done  chan struct{}
	// These are there when done is closed.
	outs []Out
	err  error
}

// call is a call that waits.
type call[In any] struct {
	in   In
	left bool
	at   int // where its input is among those of the run
}

// Do returns what the run answered to in, which began after Do was called. The
// error is that of the run, or the context's when that ends first: the call then
// leaves without harm to the others, and nothing is done for it unless its run
// has begun.
func (b *Coalescer[Key, In, Out]) Do(ctx context.Context, key Key, in In) (out Out, err error) {
	b.mu.Lock()
	l := b.lanes[key]
	if l == nil {
		l = &lane[In, Out]{}
		b.lanes[key] = l
	}
	if l.running < b.parallel {
		l.running++
		b.mu.Unlock()
		defer b.next(key, l)
		g := group[In, Out]{ins: []In{in}}
		if b.answer(ctx, key, &g); g.err != nil {
			return out, g.err
		}
		return g.outs[0], nil
	}
	if l.waiting == nil {
		l.waiting = &group[In, Out]{ctx: context.WithoutCancel(ctx), done: make(chan struct{})}
	}
	g, i := l.waiting, len(l.waiting.calls)
	g.calls = append(g.calls, call[In]{in: in})
	b.mu.Unlock()

	select {
	case <-g.done:
	case <-ctx.Done():
		b.mu.Lock()
		g.calls[i].left = true
		b.mu.Unlock()
		return out, ctx.Err()
	}
	if g.err != nil {
		return out, g.err
	}
	return g.outs[g.calls[i].at], nil
}

// next has those who wait run, when a run of their key has ended.
func (b *Coalescer[Key, In, Out]) next(key Key, l *lane[In, Out]) {
	if g := b.take(key, l); g != nil {
		go b.drain(key, l, g)
	}
}

// drain runs group after group until nobody waits.
func (b *Coalescer[Key, In, Out]) drain(key Key, l *lane[In, Out], g *group[In, Out]) {
	for ; g != nil; g = b.take(key, l) {
		b.runGroup(key, g)
	}
}

// runGroup runs a group in a context of its own, which has the values of its first
// call's: none of those who wait can end it for the others.
func (b *Coalescer[Key, In, Out]) runGroup(key Key, g *group[In, Out]) {
	ctx, cancel := context.WithTimeout(g.ctx, b.timeout)
	defer cancel()
	defer close(g.done)
	b.answer(ctx, key, g)
}

// answer runs a group; a panic is its error, for there may be nobody else to
// recover it.
func (b *Coalescer[Key, In, Out]) answer(ctx context.Context, key Key, g *group[In, Out]) {
	defer func() {
		if panicked := recover(); panicked != nil {
			g.err = fmt.Errorf("coalesce: panic: %v\n%s", panicked, debug.Stack())
		}
	}()
	g.outs, g.err = b.run(ctx, key, g.ins)
	if g.err == nil && len(g.outs) != len(g.ins) {
		g.err = fmt.Errorf("coalesce: %d answers to %d calls", len(g.outs), len(g.ins))
	}
}

// take gives the next group, if anybody is left in it, or ends the run and, with
// the last one, the lane.
func (b *Coalescer[Key, In, Out]) take(key Key, l *lane[In, Out]) *group[In, Out] {
	b.mu.Lock()
	defer b.mu.Unlock()
	g := l.waiting
	l.waiting = nil
	if g != nil && g.gather() {
		return g
	}
	if l.running--; l.running == 0 {
		delete(b.lanes, key)
	}
	return nil
}

// gather collects the inputs of those that have not left, and reports whether
// there are any.
func (g *group[In, Out]) gather() bool {
	for i := range g.calls {
		if c := &g.calls[i]; !c.left {
			c.at = len(g.ins)
			g.ins = append(g.ins, c.in)
		}
	}
	return len(g.ins) > 0
}

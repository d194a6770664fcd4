// Package coalesce merges concurrent calls: calls that wait for the same run share
// the next one. No call is delayed to be merged. A call runs alone at once if no
// run is in progress, and the calls that arrive meanwhile share the next run.
package coalesce

import (
	"context"
	"fmt"
	"runtime/debug"
	"slices"
	"sync"
	"time"
)

// slowAfter is the time after which another run may start beside a slow one, and after
// which calls that wait look at their contexts.
const slowAfter = 250 * time.Millisecond

// Limits limits the runs of a [Coalescer].
type Limits struct {
	// Parallel is the maximum number of concurrent runs per key, at least 1.
	Parallel int
	// Spare is the maximum number of runs beyond Parallel, over all keys. A spare
	// run starts if calls wait and the earlier runs of their key have taken longer
	// than 250 ms since they entered. So a hanging run does not block later calls. Leave
	// it 0 if a second run would only wait for the first.
	Spare int
	// Inputs is the maximum number of inputs of one run; further calls share the
	// run after it. 0 means no limit.
	Inputs int
	// InputsNow returns the limit to use instead of Inputs when a call joins a run; nil: use
	// Inputs. It must not call the Coalescer.
	InputsNow func() int
}

// inputs returns the maximum number of inputs of the run that a call joins now.
func (l *Limits) inputs() int {
	if l.InputsNow != nil {
		return l.InputsNow()
	}
	return l.Inputs
}

// Coalescer runs calls. Waiting calls of the same key share a run. It is safe for
// concurrent use.
type Coalescer[Key comparable, In, Out any] struct {
	run    func(context.Context, Key, []In) ([]Out, error)
	limits Limits

	// Enter begins each run, and leave ends it; nil: nothing does. It may wait for what the run
	// needs. Set it before the first call of Do.
	Enter func(context.Context, Key) (leave func(), err error)

	mu     sync.Mutex
	lanes  map[Key]*lane[In, Out] // of the keys with runs in progress
	spares int                    // spare runs in progress
}

// New returns a Coalescer of a function that returns one output per input, at the
// same index, or an error for all inputs.
func New[Key comparable, In, Out any](limits Limits, run func(context.Context, Key, []In) ([]Out, error)) *Coalescer[Key, In, Out] {
	return &Coalescer[Key, In, Out]{run: run, limits: limits, lanes: map[Key]*lane[In, Out]{}}
}

// lane is the state of one key. While calls wait, at least Parallel runs are in
// progress, because each run starts the next one when it ends.
type lane[In, Out any] struct {
	runs    []*group[In, Out] // in progress, oldest first
	waiting []*group[In, Out] // oldest first
	timer   *time.Timer       // calls late; nil until it is needed
	armed   bool              // whether the timer is set
	late    chan struct{}     // closed by the timer
}

// group is the calls of one run.
type group[In, Out any] struct {
	ctx     context.Context    // of the first call while the group waits, then of the run
	cancel  context.CancelFunc // nil while the group waits
	calls   []call[In]
	staying int       // number of calls that have not left
	began   time.Time // zero until the run has entered
	ins     []In      // of the calls that had not left when the run began
	done    chan struct{}
	// outs and err are set when done is closed.
	outs []Out
	err  error
}

// call is a waiting call.
type call[In any] struct {
	in   In
	left bool
	at   int // the index of its input among the inputs of the run
}

// Do returns the output for in of a run that starts after the call of Do. The error
// comes from the run, or from ctx if ctx ends first. If ctx ends before the run
// starts, the run does not get the input. A call that runs alone returns when its
// run does.
//
// A call that waits looks at ctx after 250 ms, or at once if its deadline is nearer. Most
// runs end earlier, so a ctx that sets its timer in Done does not need one.
//
// The context of a run has the values of its first call's ctx. It ends when the ctx
// of every call has ended. Pass a ctx that does not end with the client if the run
// must complete.
func (c *Coalescer[Key, In, Out]) Do(ctx context.Context, key Key, in In) (out Out, err error) {
	c.mu.Lock()
	l := c.lanes[key]
	if l == nil {
		l = &lane[In, Out]{}
		c.lanes[key] = l
	}
	if len(l.waiting) == 0 && c.mayBegin(l) {
		g := &group[In, Out]{ins: []In{in}}
		c.begin(l, g)
		c.mu.Unlock()
		defer c.next(key, l, g)
		if c.call(ctx, key, g); g.err != nil {
			return out, g.err
		}
		return g.outs[0], nil
	}
	g, i := c.join(ctx, l, in)
	c.arm(key, l)
	late := l.late
	c.mu.Unlock()

	if !await(ctx, g.done, late) {
		c.leave(g, i)
		return out, ctx.Err()
	}
	if g.err != nil {
		return out, g.err
	}
	return g.outs[g.calls[i].at], nil
}

// await waits for a run, and from late on also for ctx. It reports false if ctx ends first.
func await(ctx context.Context, done, late <-chan struct{}) bool {
	if deadline, ok := ctx.Deadline(); !ok || time.Until(deadline) > slowAfter {
		select {
		case <-done:
			return true
		case <-late:
		}
	}
	select {
	case <-done:
		return true
	case <-ctx.Done():
		return false
	}
}

// mayBegin reports whether another run may start. The caller holds the lock.
func (c *Coalescer[Key, In, Out]) mayBegin(l *lane[In, Out]) bool {
	if len(l.runs) < c.limits.Parallel {
		return true
	}
	began := c.decisive(l).began
	return c.spares < c.limits.Spare && !began.IsZero() && time.Since(began) >= slowAfter
}

// decisive returns the run that must be slow before a spare run may start. If it is
// slow, fewer than Parallel runs are not slow.
func (c *Coalescer[Key, In, Out]) decisive(l *lane[In, Out]) *group[In, Out] {
	return l.runs[len(l.runs)-c.limits.Parallel]
}

// join adds a call to the last waiting group, and returns the group and the index
// of the call. The caller holds the lock.
func (c *Coalescer[Key, In, Out]) join(ctx context.Context, l *lane[In, Out], in In) (*group[In, Out], int) {
	last, inputs := len(l.waiting)-1, c.limits.inputs()
	if last < 0 || (inputs > 0 && l.waiting[last].staying >= inputs) {
		l.waiting = append(l.waiting, &group[In, Out]{ctx: ctx, done: make(chan struct{})})
		last++
	}
	g := l.waiting[last]
	g.calls = append(g.calls, call[In]{in: in})
	g.staying++
	return g, len(g.calls) - 1
}

// leave removes a call from its group, and cancels the run if no call is left.
func (c *Coalescer[Key, In, Out]) leave(g *group[In, Out], i int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	g.calls[i].left = true
	g.staying--
	if g.staying == 0 && g.cancel != nil {
		g.cancel()
	}
}

// arm sets the timer to the time when a spare run may start, if calls wait. The
// caller holds the lock.
func (c *Coalescer[Key, In, Out]) arm(key Key, l *lane[In, Out]) {
	if l.armed || len(l.waiting) == 0 {
		return
	}
	l.armed, l.late = true, make(chan struct{})
	began := c.decisive(l).began
	delay := time.Until(began.Add(slowAfter))
	if c.spares == c.limits.Spare || began.IsZero() { // another key may have ended a spare run by then
		delay = max(delay, slowAfter)
	}
	if l.timer == nil {
		l.timer = time.AfterFunc(delay, func() { c.late(key, l) })
	} else {
		l.timer.Reset(delay)
	}
}

// late lets the calls look at their contexts, and starts a spare run if calls still wait
// and the runs are still slow.
func (c *Coalescer[Key, In, Out]) late(key Key, l *lane[In, Out]) {
	c.mu.Lock()
	close(l.late)
	l.armed = false
	g := c.take(key, l)
	c.mu.Unlock()
	c.drain(key, l, g)
}

// next ends a run with a single call and starts the waiting group.
func (c *Coalescer[Key, In, Out]) next(key Key, l *lane[In, Out], ended *group[In, Out]) {
	if g := c.end(key, l, ended); g != nil {
		go c.drain(key, l, g)
	}
}

// drain runs a group, which may be nil, and then the waiting ones.
func (c *Coalescer[Key, In, Out]) drain(key Key, l *lane[In, Out], g *group[In, Out]) {
	for g != nil {
		c.call(g.ctx, key, g)
		g.cancel()
		close(g.done)
		g = c.end(key, l, g)
	}
}

// call calls the function for a group. It turns a panic into an error, because
// callers in other goroutines could not recover it.
func (c *Coalescer[Key, In, Out]) call(ctx context.Context, key Key, g *group[In, Out]) {
	defer func() {
		if panicked := recover(); panicked != nil {
			g.err = fmt.Errorf("coalesce: panic: %v\n%s", panicked, debug.Stack())
		}
	}()
	if c.Enter != nil {
		leave, err := c.Enter(ctx, key)
		if g.err = err; err != nil {
			return
		}
		defer leave()
		c.mu.Lock()
		g.began = time.Now()
		c.mu.Unlock()
	}
	g.outs, g.err = c.run(ctx, key, g.ins)
	if g.err == nil && len(g.outs) != len(g.ins) {
		g.err = fmt.Errorf("coalesce: the run returned %d outputs for %d inputs", len(g.outs), len(g.ins))
	}
}

// end ends a run, and starts and returns the next group, if any.
func (c *Coalescer[Key, In, Out]) end(key Key, l *lane[In, Out], ended *group[In, Out]) *group[In, Out] {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(l.runs) > c.limits.Parallel {
		c.spares--
	}
	at := slices.Index(l.runs, ended)
	l.runs = slices.Delete(l.runs, at, at+1)
	g := c.take(key, l)
	if len(l.runs) == 0 {
		delete(c.lanes, key)
		if l.timer != nil {
			l.timer.Stop()
		}
	}
	return g
}

// take starts the run of the first waiting group with calls left, if a run may
// start. The caller holds the lock.
func (c *Coalescer[Key, In, Out]) take(key Key, l *lane[In, Out]) *group[In, Out] {
	for len(l.waiting) > 0 && c.mayBegin(l) {
		g := l.waiting[0]
		l.waiting = slices.Delete(l.waiting, 0, 1)
		if g.staying == 0 {
			continue
		}
		g.gather()
		c.begin(l, g)
		c.arm(key, l)
		return g
	}
	c.arm(key, l)
	return nil
}

// begin counts a run as in progress. The caller holds the lock.
func (c *Coalescer[Key, In, Out]) begin(l *lane[In, Out], g *group[In, Out]) {
	if c.Enter == nil {
		g.began = time.Now()
	}
	if l.runs = append(l.runs, g); len(l.runs) > c.limits.Parallel {
		c.spares++
	}
}

// gather collects the inputs of the calls that have not left, and creates the
// context of the run.
func (g *group[In, Out]) gather() {
	g.ctx, g.cancel = context.WithCancel(context.WithoutCancel(g.ctx)) //nolint:gosec // drain calls cancel
	g.ins = make([]In, 0, g.staying)
	for i := range g.calls {
		if one := &g.calls[i]; !one.left {
			one.at = len(g.ins)
			g.ins = append(g.ins, one.in)
		}
	}
}

package delivery

import (
	"context"
	"fmt"
	"log/slog"
	"runtime/debug"
	"sync"
)

// maxTasks is the number of tasks that wait or run. A payer without any may still start one.
const maxTasks = 20_000

// tasks are functions that run by key, at most one at a time for each key.
type tasks[Key comparable] struct {
	log     *slog.Logger
	running sync.WaitGroup

	mu     sync.Mutex
	again  map[Key]bool  // the keys of tasks; true: it was started again meanwhile
	payers map[int64]int // the number of tasks by payer
}

func newTasks[Key comparable](log *slog.Logger) *tasks[Key] {
	return &tasks[Key]{log: log, again: map[Key]bool{}, payers: map[int64]int{}}
}

// start runs a function for a key. If the key has a task, the task runs once more at its
// end. If there are too many tasks, start does nothing, and a sweep starts the task later.
func (t *tasks[Key]) start(key Key, payer int64, run func()) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if _, has := t.again[key]; has {
		t.again[key] = true
		return
	}
	if len(t.again) >= maxTasks && t.payers[payer] > 0 {
		return
	}
	t.again[key] = false
	t.payers[payer]++
	t.running.Go(func() {
		for more := true; more; more = t.end(key, payer) {
			if err := guarded(func() error { run(); return nil }); err != nil {
				t.log.LogAttrs(context.Background(), slog.LevelError, "panic while delivering webhooks", slog.Any("error", err))
			}
		}
	})
}

// listen forgets that the task of a key was started again. Call it before the task looks
// for work for the last time.
func (t *tasks[Key]) listen(key Key) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.again[key] = false
}

// end ends the task of a key, unless it was started again.
func (t *tasks[Key]) end(key Key, payer int64) (more bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.again[key] {
		t.again[key] = false
		return true
	}
	delete(t.again, key)
	if t.payers[payer]--; t.payers[payer] == 0 {
		delete(t.payers, payer)
	}
	return false
}

// wait waits until all tasks have ended.
func (t *tasks[Key]) wait() { t.running.Wait() }

// guarded runs a function. It returns a panic as an error, so that the process goes on.
func guarded(run func() error) (err error) {
	defer func() {
		if value := recover(); value != nil {
			err = fmt.Errorf("delivery: panic: %v\n%s", value, debug.Stack())
		}
	}()
	return run()
}

// inbox is a set of keys that others have named.
type inbox[Key comparable] struct {
	woken chan struct{} // has an element if there are keys

	mu   sync.Mutex
	keys map[Key]bool
}

func newInbox[Key comparable]() *inbox[Key] {
	return &inbox[Key]{woken: make(chan struct{}, 1), keys: map[Key]bool{}}
}

// add adds a key. It does not block.
func (b *inbox[Key]) add(key Key) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.keys[key] = true
	select {
	case b.woken <- struct{}{}:
	default:
	}
}

// each takes the keys out when there are any, and passes them to a function, until ctx ends.
func (b *inbox[Key]) each(ctx context.Context, do func(context.Context, map[Key]bool)) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-b.woken:
		}
		b.mu.Lock()
		keys := b.keys
		b.keys = map[Key]bool{}
		b.mu.Unlock()
		do(ctx, keys)
	}
}

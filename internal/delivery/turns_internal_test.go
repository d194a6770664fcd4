package delivery

import "testing"

// TestTurns: accounts take turns, and nobody takes an account that somebody else has.
func TestTurns(t *testing.T) {
	t.Parallel()
	queue := newTurns(2)
	for _, id := range []int64{1, 1, 2} {
		queue.add(id)
	}
	expect := func(want int64) {
		t.Helper()
		if got, ok := queue.take(t.Context()); !ok || got != want {
			t.Fatalf("took account %d, want %d", got, want)
		}
	}
	expect(1)
	queue.add(1) // it has more
	expect(2)
	if id, ok := queue.next(); ok {
		t.Errorf("took account %d, which somebody else has", id)
	}
	queue.add(3)
	expect(3)
	queue.done(1)
	queue.add(2)
	expect(1)
	queue.done(1)
	queue.done(2)
	expect(2)
	if id, ok := queue.next(); ok {
		t.Errorf("took account %d from an empty queue", id)
	}
}

package api

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
)

// TestTurns checks that one request of an account runs at a time, in the order of
// arrival. Accounts do not wait for each other, and a request that gives up loses its
// place.
func TestTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var turns turns
		end, err := turns.take(t.Context(), 1)
		if err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex
		var order []int
		impatient, giveUp := context.WithCancel(t.Context())
		for i, ctx := range []context.Context{t.Context(), impatient, t.Context(), t.Context()} {
			go func() {
				end, err := turns.take(ctx, 1)
				if (err != nil) != (ctx == impatient) {
					t.Errorf("request %d: %v", i, err)
				}
				if err != nil {
					return
				}
				mu.Lock()
				order = append(order, i)
				mu.Unlock()
				end()
			}()
			synctest.Wait()
		}
		if _, err := turns.take(t.Context(), 2); err != nil {
			t.Error(err)
		}
		giveUp()
		synctest.Wait()
		if len(order) > 0 {
			t.Errorf("requests %v ran beside the first", order)
		}
		end()
		synctest.Wait()
		if want := []int{0, 2, 3}; !slices.Equal(order, want) {
			t.Errorf("order %v, want %v", order, want)
		}
		if _, busy := turns.waiting[1]; busy {
			t.Error("an idle account is still listed")
		}
	})
}

// TestTurnOfACanceledRequest checks that a request whose turn comes as it gives up passes
// the turn on.
func TestTurnOfACanceledRequest(t *testing.T) {
	t.Parallel()
	var turns turns
	for range 200 {
		end, err := turns.take(t.Context(), 1)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var group sync.WaitGroup
		group.Go(func() {
			if end, err := turns.take(ctx, 1); err == nil {
				end()
			}
		})
		group.Go(cancel)
		group.Go(end)
		group.Wait()
		if len(turns.waiting) > 0 {
			t.Fatalf("waiting: %v", turns.waiting)
		}
	}
}

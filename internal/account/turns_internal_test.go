package account

import (
	"context"
	"errors"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
)

// TestTurns checks that one request with all turns of an account runs at a time, in the
// order of arrival. Accounts do not wait for each other, and a request that gives up loses its
// place.
func TestTurns(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var turns Turns
		end, err := turns.Take(t.Context(), 1, AllTurns)
		if err != nil {
			t.Fatal(err)
		}
		var mu sync.Mutex
		var order []int
		impatient, giveUp := context.WithCancel(t.Context())
		for i, ctx := range []context.Context{t.Context(), impatient, t.Context(), t.Context()} {
			go func() {
				end, err := turns.Take(ctx, 1, AllTurns)
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
		if _, err := turns.Take(t.Context(), 2, AllTurns); err != nil {
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
		if _, busy := turns.accounts[1]; busy {
			t.Error("an idle account is still listed")
		}
	})
}

// TestTurnOfACanceledRequest checks that a request whose turn comes as it gives up passes
// the turn on.
func TestTurnOfACanceledRequest(t *testing.T) {
	t.Parallel()
	var turns Turns
	for range 200 {
		end, err := turns.Take(t.Context(), 1, AllTurns)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		var group sync.WaitGroup
		group.Go(func() {
			if end, err := turns.Take(ctx, 1, AllTurns); err == nil {
				end()
			}
		})
		group.Go(cancel)
		group.Go(end)
		group.Wait()
		if len(turns.accounts) > 0 {
			t.Fatalf("accounts: %v", turns.accounts)
		}
	}
}

// TestTurnsAtOnce checks that an account has four turns. Requests that need all turns run
// alone, and requests behind them wait. A request that gives up lets those behind it run.
func TestTurnsAtOnce(t *testing.T) {
	t.Parallel()
	var turns Turns
	begin := func(account int64, number int) (give func()) {
		t.Helper()
		give, err := turns.Take(t.Context(), account, number)
		if err != nil {
			t.Fatal(err)
		}
		return give
	}
	waiting := func(want int) {
		for turns.waiting(1) != want {
			runtime.Gosched() // until the goroutine of the request waits
		}
	}
	queue := func(ctx context.Context, number, position int) <-chan func() {
		t.Helper()
		begun := make(chan func(), 1)
		go func() {
			defer close(begun)
			if give, err := turns.Take(ctx, 1, number); err == nil {
				begun <- give
			} else if !errors.Is(err, context.Canceled) {
				t.Error(err)
			}
		}()
		waiting(position)
		return begun
	}

	var running []func()
	for range AllTurns {
		running = append(running, begin(1, OneTurn))
	}
	begin(2, AllTurns)() // another account does not wait
	ctx, cancel := context.WithCancel(t.Context())
	abandoned := queue(ctx, AllTurns, 1)
	alone := queue(t.Context(), AllTurns, 2)
	behind := queue(t.Context(), OneTurn, 3)
	running[0]()
	waiting(3) // also the one that would fit
	cancel()
	if _, begun := <-abandoned; begun {
		t.Error("a request with a canceled context got turns")
	}
	waiting(2)
	for _, give := range running[1:] {
		give()
	}
	give := <-alone
	waiting(1)
	give()
	(<-behind)()

	running = []func(){begin(1, OneTurn)}
	ctx, cancel = context.WithCancel(t.Context())
	queue(ctx, AllTurns, 1)
	behind = queue(t.Context(), OneTurn, 2)
	cancel()
	(<-behind)() // while the first runs
	running[0]()
	if len(turns.accounts) > 0 {
		t.Errorf("%d accounts are left", len(turns.accounts))
	}
}

// waiting returns the number of requests of an account that wait.
func (t *Turns) waiting(account int64) int {
	t.mu.Lock()
	defer t.mu.Unlock()
	if own := t.accounts[account]; own != nil {
		return len(own.waiting)
	}
	return 0
}

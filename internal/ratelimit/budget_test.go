package ratelimit_test

import (
	"sync"
	"testing"

	"petstore/internal/ratelimit"
)

func TestBudget(t *testing.T) {
	t.Parallel()
	budget := ratelimit.NewBudget[string](10, 4)
	for i, step := range []struct {
		holder string
		amount int64 // negative: given back
		want   ratelimit.Grant
	}{
		{"a", 3, ratelimit.Granted},
		{"a", 2, ratelimit.ShareExhausted},
		{"a", 1, ratelimit.Granted},
		{"b", 4, ratelimit.Granted},
		{"c", 3, ratelimit.Exhausted},
		{"c", 2, ratelimit.Granted},
		{"d", 1, ratelimit.Exhausted},
		{"a", 1, ratelimit.ShareExhausted}, // the share is checked before the total
		{"b", -4, ratelimit.Granted},
		{"c", 3, ratelimit.ShareExhausted},
		{"a", -4, ratelimit.Granted},
		{"a", 8, ratelimit.Granted}, // a holder without anything may exceed its share
		{"a", 1, ratelimit.ShareExhausted},
		{"c", -2, ratelimit.Granted},
		{"a", -8, ratelimit.Granted},
		{"b", 11, ratelimit.Granted}, // nothing is taken, so the total may be exceeded
		{"c", 1, ratelimit.Exhausted},
	} {
		if step.amount < 0 {
			budget.Give(step.holder, -step.amount)
			continue
		}
		if got := budget.Take(step.holder, step.amount); got != step.want {
			t.Errorf("step %d: Take(%q, %d) = %d, want %d", i, step.holder, step.amount, got, step.want)
		}
	}
}

func TestUnlimitedBudget(t *testing.T) {
	t.Parallel()
	budget := ratelimit.NewBudget[string](0, 0)
	if got := budget.Take("a", 1<<62); got != ratelimit.Granted {
		t.Errorf("Take = %d, want Granted", got)
	}
	budget.Give("a", 1<<62)
}

// TestBudgetRace checks that concurrent holders never have more than the total, and
// that everything taken is given back.
func TestBudgetRace(t *testing.T) {
	t.Parallel()
	const holders, total, share = 8, 20, 5
	budget := ratelimit.NewBudget[int](total, share)
	var group sync.WaitGroup
	var mu sync.Mutex
	var taken, most int64
	add := func(n int64) {
		mu.Lock()
		defer mu.Unlock()
		taken += n
		most = max(most, taken)
	}
	for holder := range holders {
		group.Go(func() {
			for range 1000 {
				if budget.Take(holder, 3) == ratelimit.Granted {
					add(3)
					add(-3)
					budget.Give(holder, 3)
				}
			}
		})
	}
	group.Wait()
	if most > total {
		t.Errorf("%d of %d were taken at the same time", most, total)
	}
	if got := budget.Take(0, total); got != ratelimit.Granted {
		t.Errorf("Take of all = %d after everything was given back", got)
	}
}

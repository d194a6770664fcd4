package faults

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"petstore/internal/auth"
	"petstore/internal/coalesce"
	"petstore/internal/postgres"
	"petstore/internal/tools/need"
)

// TestForgetFaults: a change of the rules of one sandbox does not make the process read
// the rules of another. A read that began before the change is not cached.
func TestForgetFaults(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testForgetFaults) // no rules expire
}

func testForgetFaults(t *testing.T) {
	t.Helper()
	f := New(&postgres.DB{}, auth.NewVerifier(nil, nil), nil)
	reads := map[int64]int{}
	var during func()
	f.reads = coalesce.New(sharedReads, func(_ context.Context, account int64, calls []struct{}) ([][]Rule, error) {
		reads[account]++
		if during != nil {
			during()
		}
		return make([][]Rule, len(calls)), nil
	})
	const changed, other = 1, 2
	wantReads := func(what string, want map[int64]int) {
		t.Helper()
		for _, account := range []int64{changed, other} {
			need.Value(f.rules(t.Context(), account))(t)
		}
		need.Same(t, want, reads, "%s: reads by account", what)
	}
	wantReads("first", map[int64]int{changed: 1, other: 1})
	f.Forget(changed)
	during = func() { f.Forget(changed) }
	wantReads("after a change", map[int64]int{changed: 2, other: 1})
	during = nil
	wantReads("after a change during the read", map[int64]int{changed: 3, other: 1})
}

// TestAnnouncedChange: a process that gets all announcements of changes does not read the rules of
// a sandbox without rules again before one.
func TestAnnouncedChange(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testAnnouncedChange)
}

func testAnnouncedChange(t *testing.T) {
	t.Helper()
	verifier := auth.NewVerifier(nil, nil)
	f := New(&postgres.DB{}, verifier, nil)
	var rules []Rule
	reads := 0
	f.reads = coalesce.New(sharedReads, func(context.Context, int64, []struct{}) ([][]Rule, error) {
		reads++
		return [][]Rule{rules}, nil
	})
	const sandbox, other = 1, 2
	for _, step := range []struct {
		name   string
		change func()
		want   int // reads
	}{
		{"first", func() {}, 1},
		{"later", func() {}, 0},
		{"a change of another sandbox", func() { verifier.ForgetAccount(other) }, 0},
		{"a change", func() { verifier.ForgetAccount(sandbox) }, 1},
		{"lost announcements", verifier.Forget, 1},
		{"no proof that none was lost", func() { time.Sleep(time.Second) }, 1}, //nolint:forbidigo // the clock of the test
		{"a rule", func() { verifier.ForgetAccount(sandbox); rules = make([]Rule, 1) }, 1},
		{"later, because requests may use the rule up", func() {}, 1},
	} {
		reads = 0
		time.Sleep(cachedFor + 1) //nolint:forbidigo // the clock of the test
		verifier.Trust()
		step.change()
		if _, err := f.rules(t.Context(), sandbox); err != nil || reads != step.want {
			t.Errorf("%s: %d reads, want %d (error %v)", step.name, reads, step.want, err)
		}
	}
}

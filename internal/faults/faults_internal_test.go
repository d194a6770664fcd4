package faults

import (
	"context"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"petstore/internal/coalesce"
	"petstore/internal/postgres"
)

// TestForgetFaults: a change of the rules of one sandbox does not make the process read
// the rules of another. A read that began before the change is not cached.
func TestForgetFaults(t *testing.T) {
	t.Parallel()
	synctest.Test(t, testForgetFaults) // no rules expire
}

func testForgetFaults(t *testing.T) {
	t.Helper()
	f := New(&postgres.DB{})
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
			if _, err := f.rules(t.Context(), account); err != nil {
				t.Fatal(err)
			}
		}
		if diff := cmp.Diff(want, reads); diff != "" {
			t.Errorf("%s: reads by account (-want +got):\n%s", what, diff)
		}
	}
	wantReads("first", map[int64]int{changed: 1, other: 1})
	f.Forget(changed)
	during = func() { f.Forget(changed) }
	wantReads("after a change", map[int64]int{changed: 2, other: 1})
	during = nil
	wantReads("after a change during the read", map[int64]int{changed: 3, other: 1})
}

package must_test

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"petstore/internal/sleep"
	"petstore/internal/tools/must"
)

// TestAwait calls a function that takes two seconds, and fails some times first.
func TestAwait(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		limit    time.Duration
		failures int
		want     string
	}{
		{2 * time.Second, 0, "<nil>"},
		{time.Second, 0, "it took 2s, want at most 1s"},
		{5 * time.Second, 1, "<nil>"},
		{3 * time.Second, 9, "not within 3s: not yet"},
		{-time.Second, 0, "the limit ended 1s before the wait began"},
	} {
		synctest.Test(t, func(t *testing.T) {
			calls := 0
			err := must.Attempt(func() {
				must.Await(t.Context(), test.limit, func() {
					sleep.For(t.Context(), 2*time.Second)
					if calls++; calls <= test.failures {
						must.OK(errors.New("not yet"))
					}
				})
			})
			if fmt.Sprint(err) != test.want {
				t.Errorf("limit %s, %d failures: %v, want %s", test.limit, test.failures, err, test.want)
			}
		})
	}
}

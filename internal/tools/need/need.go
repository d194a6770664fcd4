// Package need ends a test at an error that leaves the rest of the test without sense.
package need

import "testing"

// OK ends the test unless err is nil.
func OK(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Value takes the results of a call, as in need.Value(os.ReadFile(name))(t). The function that it
// returns gives the test the value, or ends the test unless err is nil.
func Value[T any](value T, err error) func(testing.TB) T {
	return func(t testing.TB) T {
		t.Helper()
		OK(t, err)
		return value
	}
}

// Package need has what most tests need: values without errors, servers, goroutines, waits and comparisons.
package need

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// pollInterval is the pause between two looks of [Within]. A look at a database can cost milliseconds of
// CPU time.
const pollInterval = 10 * time.Millisecond

// maxPair is the length of two values that are easier to compare side by side than as a diff.
const maxPair = 120

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

// Server serves a handler over HTTP until the test ends.
func Server(t testing.TB, handle http.HandlerFunc) *httptest.Server {
	t.Helper()
	server := httptest.NewServer(handle)
	t.Cleanup(server.Close)
	return server
}

// Background calls a function in a goroutine, whose context ends with the test, or when stop is called.
// Both wait for the end of the function.
func Background(t testing.TB, run func(context.Context)) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	var running sync.WaitGroup
	running.Go(func() { run(ctx) })
	stop = func() {
		cancel()
		running.Wait()
	}
	t.Cleanup(stop)
	return stop
}

// Within waits for a condition that nothing announces. It ends the test if the condition does not hold when
// the time is over.
func Within(t testing.TB, limit time.Duration, what string, holds func() bool) {
	t.Helper()
	for deadline := time.Now().Add(limit); ; <-time.After(pollInterval) {
		began := time.Now()
		if holds() {
			return
		}
		if began.After(deadline) { // the look before may have taken long
			t.Fatalf("not within %s: %s", limit, what)
		}
	}
}

// Same fails the test unless got is want. The text says what it is, and the failure which is which.
func Same[T any](t testing.TB, want, got T, format string, args ...any) {
	t.Helper()
	diff := cmp.Diff(want, got)
	if diff == "" {
		return
	}
	what := fmt.Sprintf(format, args...)
	switch pair := fmt.Sprintf("%#v, want %#v", got, want); any(want).(type) {
	case bool, int, int64, string:
		if len(pair) < maxPair {
			t.Errorf("%s: %s", what, pair)
			return
		}
	}
	t.Errorf("%s (-want +got):\n%s", what, diff)
}

// Contains fails the test unless a text has all parts. The failure says which text it is.
func Contains(t testing.TB, what, text string, parts ...string) {
	t.Helper()
	for _, part := range parts {
		if !strings.Contains(text, part) {
			t.Errorf("%s does not contain %q:\n%s", what, part, text)
		}
	}
}

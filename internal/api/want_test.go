package api_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// wantEqual fails the test unless a value is the expected one. The text says what it is.
func wantEqual[T any](t testing.TB, want, got T, text string, args ...any) {
	t.Helper()
	diff := cmp.Diff(want, got)
	if diff == "" {
		return
	}
	text = fmt.Sprintf(text, args...)
	switch any(want).(type) {
	case bool, int, int64, uint64:
		t.Errorf("%s: %v, want %v", text, got, want)
	case string:
		t.Errorf("%s: %q, want %q", text, any(got), any(want))
	default:
		t.Errorf("%s (-want +got):\n%s", text, diff)
	}
}

// wantNoDiff fails the test if two values differ. The text says what they are, such as "pages
// (-first +second)".
func wantNoDiff(t testing.TB, one, other any, text string, args ...any) {
	t.Helper()
	if diff := cmp.Diff(one, other); diff != "" {
		t.Errorf("%s:\n%s", fmt.Sprintf(text, args...), diff)
	}
}

// mapped returns the result of a function for each item; nil: there are no items.
func mapped[T, R any](items []T, of func(T) R) (results []R) {
	for _, item := range items {
		results = append(results, of(item))
	}
	return results
}

// wantHeader fails the test unless a header field of the response has this value; "" means that
// it is absent.
func (r *response) wantHeader(name, want string) *response {
	r.t.Helper()
	if got := r.header.Get(name); got != want {
		r.t.Errorf("%s: %d with %s %q, want %q", r.what, r.status, name, got, want)
	}
	return r
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// wantText fails the test unless a text contains all of these.
func wantText(t testing.TB, text string, wants ...string) {
	t.Helper()
	for _, want := range wants {
		if !strings.Contains(text, want) {
			t.Errorf("there is no %q in:\n%s", want, text)
		}
	}
}

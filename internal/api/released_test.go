package api_test

import (
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"

	"petstore/internal/tools/need"
)

// TestReleasedClients: the spec breaks no client of the last release in two ways that oasdiff
// does not report. Each operation accepts the credentials that it accepted, and each error code
// still exists. A new major version may break clients. `make breaking` looks for other changes.
func TestReleasedClients(t *testing.T) {
	t.Parallel()
	released := need.Value(openapi3.NewLoader().LoadFromFile("testdata/released/openapi.yaml"))(t)
	now := theContract().document
	if major(t, now) > major(t, released) {
		return
	}
	for _, change := range breaking(released, now) {
		t.Error(change)
	}
}

func major(t *testing.T, document *openapi3.T) int {
	t.Helper()
	text, _, _ := strings.Cut(document.Info.Version, ".")
	number := need.Value(strconv.Atoi(text))(t)
	return number
}

// breaking returns the changes that break a client of base.
func breaking(base, revision *openapi3.T) []string {
	return slices.Concat(changedCredentials(base, revision), removedCodes(base, revision))
}

// changedCredentials finds operations that accept other credentials, unless they now need none.
func changedCredentials(base, revision *openapi3.T) (changes []string) {
	scheme := func(document *openapi3.T) string {
		key := document.Components.SecuritySchemes["apiKey"].Value
		return key.Type + " " + key.Scheme
	}
	if before, after := scheme(base), scheme(revision); before != after {
		changes = append(changes, fmt.Sprintf("the API key was %s, now it is %s", before, after))
	}
	accepted := func(document *openapi3.T, operation *openapi3.Operation) string {
		if operation.Security == nil {
			return fmt.Sprint(document.Security)
		}
		return fmt.Sprint(*operation.Security)
	}
	for _, o := range operationsOf(base) {
		kept := revision.Paths.Value(o.path)
		if kept == nil || kept.GetOperation(o.method) == nil {
			continue // oasdiff reports it
		}
		before, after := accepted(base, o.described), accepted(revision, kept.GetOperation(o.method))
		if before != after && after != "[]" {
			changes = append(changes, fmt.Sprintf("%s %s accepted %s, now %s", o.method, o.path, before, after))
		}
	}
	return changes
}

// removedCodes finds the error codes that revision no longer has. Clients depend on them. They
// are not an enum, because new codes may be added.
func removedCodes(base, revision *openapi3.T) (changes []string) {
	remaining := (&contract{document: revision}).describedCodes()
	for code := range (&contract{document: base}).describedCodes() {
		if !remaining[code] {
			changes = append(changes, "no error has the code "+code)
		}
	}
	return changes
}

// TestBreakingChanges edits the released spec.
func TestBreakingChanges(t *testing.T) {
	t.Parallel()
	text := string(need.Value(os.ReadFile("testdata/released/openapi.yaml"))(t))
	load := func(text string) *openapi3.T {
		return need.Value(openapi3.NewLoader().LoadFromData([]byte(text)))(t)
	}
	released := load(text)
	for _, test := range []struct{ before, after, want string }{
		{"scheme: bearer", "scheme: basic", "the API key was http bearer, now it is http basic"},
		{"      security: []\n", "", "GET /openapi.json accepted [], now [map[apiKey:[]]]"},
		{"`insufficient_stock`", "`out_of_stock`", "no error has the code 409 insufficient_stock"},
		{"`blank`", "`empty`", "no error has the code body blank"},
		{"summary: List pets", "summary: List all pets", ""},
	} {
		need.Same(t, test.want, strings.Join(breaking(released, load(strings.Replace(text, test.before, test.after, 1))), "\n"),
			"%s instead of %s", test.after, test.before)
	}
}

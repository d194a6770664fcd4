package api_test

import (
	"cmp"
	"fmt"
	"maps"
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
	return slices.Concat(removedCredentials(base, revision), removedCodes(base, revision))
}

// removedCredentials finds operations that no longer accept a credential.
func removedCredentials(base, revision *openapi3.T) (changes []string) {
	for path, item := range base.Paths.Map() {
		for method, operation := range item.Operations() {
			kept := revision.Paths.Value(path)
			if kept == nil || kept.GetOperation(method) == nil {
				continue // oasdiff reports it
			}
			accepted := credentials(revision, kept.GetOperation(method))
			for _, credential := range credentials(base, operation) {
				if !slices.Contains(accepted, credential) && !slices.Contains(accepted, unauthenticated) {
					changes = append(changes, fmt.Sprintf("%s %s accepted %s, now only %s", method, path, credential, strings.Join(accepted, " or ")))
				}
			}
		}
	}
	return changes
}

const unauthenticated = "no credential"

// credentials returns the alternatives that an operation accepts, as its security schemes define them.
func credentials(document *openapi3.T, operation *openapi3.Operation) (alternatives []string) {
	requirements := document.Security
	if operation.Security != nil {
		requirements = *operation.Security
	}
	for _, requirement := range requirements {
		var parts []string
		for _, name := range slices.Sorted(maps.Keys(requirement)) {
			s := document.Components.SecuritySchemes[name].Value
			parts = append(parts, strings.Join(strings.Fields(s.Type+" "+strings.ToLower(s.Scheme)+" "+s.In+" "+s.Name+" "+strings.Join(requirement[name], " ")), " "))
		}
		alternatives = append(alternatives, cmp.Or(strings.Join(parts, " with "), unauthenticated))
	}
	if len(alternatives) == 0 {
		return []string{unauthenticated}
	}
	return alternatives
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

// smallSpec has the security and the error codes of two operations, in the form of openapi.yaml.
const smallSpec = `
openapi: 3.0.3
info: { title: Petstore, version: 1.0.0 }
security: [apiKey: []]
paths:
  /pets: { get: { responses: { '200': { description: Pets. } } } }
  /livez: { get: { security: [], responses: { '200': { description: It runs. } } } }
components:
  securitySchemes:
    apiKey: { type: http, scheme: bearer }
  schemas:
    Error:
      properties: { code: { description: "| 409 | ` + "`category_exists` `insufficient_stock` |\\n| 422 | `unknown_pet`" + ` |" } }
    Violation:
      properties: { code: { description: "| ` + "`too_short` | body | The value is too short. |\\n| `blank`" + ` | body |" } }
`

// TestBreakingChanges edits a small spec.
func TestBreakingChanges(t *testing.T) {
	t.Parallel()
	load := func(text string) *openapi3.T {
		document := need.Value(openapi3.NewLoader().LoadFromData([]byte(text)))(t)
		return document
	}
	for _, test := range []struct{ before, after, want string }{
		{"bearer", "basic", "GET /pets accepted http bearer, now only http basic"},
		{"security: [], ", "", "GET /livez accepted no credential, now only http bearer"},
		{"`insufficient_stock`", "`out_of_stock`", "no error has the code 409 insufficient_stock"},
		{"`blank`", "`empty`", "no error has the code body blank"},
		{"It runs.", "It is alive.", ""},
	} {
		revision := load(strings.Replace(smallSpec, test.before, test.after, 1))
		need.Same(t, test.want, strings.Join(breaking(load(smallSpec), revision), "\n"),
			"%s instead of %s", test.after, test.before)
	}
}

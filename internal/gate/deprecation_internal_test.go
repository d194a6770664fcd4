package gate

import (
	"fmt"
	"strings"
	"testing"
)

// TestDeprecationsAreChecked: the server does not start with an invalid deprecation
// in the spec.
func TestDeprecationsAreChecked(t *testing.T) {
	t.Parallel()
	const right = `"tags":["pets"],"operationId":"getPet","deprecated":true,"x-deprecated-since":"2026-07-01","x-deprecated-sunset":"2027-12-31","x-deprecated-successor":"/pets?id={petId}"`
	read := func(operation string) (map[string]*deprecation, error) {
		operations, err := ParseOperations(fmt.Appendf(nil, `{"paths":{"/pets/{petId}":{"summary":"A pet","parameters":[{"name":"petId"}],"get":{%s},"patch":{}}}}`, operation))
		if err != nil {
			return nil, err
		}
		return deprecations(operations, "")
	}
	found, err := read(right)
	if err != nil || len(found) != 1 || found["GET /pets/{petId}"] == nil {
		t.Fatalf("%v, %v; want only GET /pets/{petId}", found, err)
	}
	if found, err := read(strings.Replace(right, "true", "false", 1)); err != nil || len(found) != 0 {
		t.Errorf("not deprecated: %v, %v", found, err)
	}
	for old, replacement := range map[string]string{
		"2026-07-01":        "2026-07-32",
		"-since":            "-from",
		"2027-12-31":        "2027-12-31T00:00:00Z",
		`"2027-12-31"`:      "20271231",
		"2027-12":           "2026-06",
		"-sunset":           "-until",
		"-successor":        "-next",
		"/pets?id=":         "pets?id=",
		"{petId}":           "{id}",
		"={petId}":          "={petId",
		"/pets?id={petId}":  "/pets/{petId}/details",
		`"pets"`:            "",
		`"deprecated":true`: `"deprecated":"true"`,
	} {
		if _, err := read(strings.Replace(right, old, replacement, 1)); err == nil || !strings.Contains(err.Error(), "/pets/{petId}") {
			t.Errorf("%s instead of %s: the error is %v, want one that names the operation", replacement, old, err)
		}
	}
	if _, err := ParseOperations([]byte("{")); err == nil {
		t.Error("text that is not JSON was accepted")
	}
}

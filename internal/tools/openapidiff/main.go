// Openapidiff prints breaking changes between two versions of the spec that oasdiff
// does not report, one per line: an operation that no longer accepts a credential, and
// an error code that no longer exists.
//
//	go run ./internal/tools/openapidiff BASE.yaml REVISION.yaml
//
// It exits with 1 if there is a breaking change, and with 2 if it cannot read a spec.
// `make breaking` runs both programs.
package main

import (
	"fmt"
	"io"
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"

	"github.com/getkin/kin-openapi/openapi3"
)

func main() {
	os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) //nolint:forbidigo // this is main
}

func run(args []string, stdout, stderr io.Writer) (code int) {
	if len(args) != 2 {
		fmt.Fprintln(stderr, "usage: openapidiff BASE.yaml REVISION.yaml")
		return 2
	}
	var documents [2]*openapi3.T
	for i, file := range args {
		document, err := openapi3.NewLoader().LoadFromFile(file)
		if err != nil {
			fmt.Fprintf(stderr, "openapidiff: %s: %v\n", file, err)
			return 2
		}
		documents[i] = document
	}
	changes := breaking(documents[0], documents[1])
	for _, change := range changes {
		fmt.Fprintln(stdout, change)
	}
	return min(len(changes), 1)
}

// breaking returns the changes that break a client of base.
func breaking(base, revision *openapi3.T) []string {
	return slices.Concat(removedCredentials(base, revision), removedCodes(base, revision))
}

// removedCredentials finds operations that no longer accept a credential.
func removedCredentials(base, revision *openapi3.T) []string {
	var changes []string
	for _, path := range slices.Sorted(maps.Keys(base.Paths.Map())) {
		operations := base.Paths.Value(path).Operations()
		for _, method := range slices.Sorted(maps.Keys(operations)) {
			item := revision.Paths.Value(path)
			if item == nil || item.GetOperation(method) == nil {
				continue // oasdiff reports it
			}
			accepted := credentials(revision, item.GetOperation(method))
			for _, credential := range credentials(base, operations[method]) {
				if !slices.Contains(accepted, credential) && !slices.Contains(accepted, unauthenticated) {
					changes = append(changes, fmt.Sprintf("%s %s accepted %s, now only %s", method, path, credential, strings.Join(accepted, " or ")))
				}
			}
		}
	}
	return changes
}

const unauthenticated = "no credential"

// credentials returns the alternatives that an operation accepts, as its security schemes
// define them.
func credentials(document *openapi3.T, operation *openapi3.Operation) []string {
	requirements := document.Security
	if operation.Security != nil {
		requirements = *operation.Security
	}
	if len(requirements) == 0 {
		return []string{unauthenticated}
	}
	alternatives := make([]string, 0, len(requirements))
	for _, requirement := range requirements {
		var parts []string
		for _, name := range slices.Sorted(maps.Keys(requirement)) {
			s := document.Components.SecuritySchemes[name].Value
			part := strings.Join(strings.Fields(s.Type+" "+strings.ToLower(s.Scheme)+" "+s.In+" "+s.Name), " ")
			parts = append(parts, strings.Join(append([]string{part}, requirement[name]...), " "))
		}
		if len(parts) == 0 {
			parts = []string{unauthenticated}
		}
		alternatives = append(alternatives, strings.Join(parts, " with "))
	}
	return alternatives
}

// removedCodes finds the error codes that revision no longer has. Clients depend on them. They
// are not an enum, because new codes may be added.
func removedCodes(base, revision *openapi3.T) []string {
	var changes []string
	for _, schema := range []string{"Error", "Violation"} {
		remaining := codes(revision, schema)
		for _, code := range codes(base, schema) {
			if !slices.Contains(remaining, code) {
				changes = append(changes, fmt.Sprintf("%s.code no longer has %s", schema, code))
			}
		}
	}
	return changes
}

var (
	codeRow  = regexp.MustCompile(`(?m)^\| (?:(\d{3}) \| )?([^|]*)\|`)
	codeName = regexp.MustCompile("`([a-z_]+)`")
)

// codes reads the table of error codes in the text of a schema's code. Rows like "|
// 409 | `a` `b` |" return "409 a" and "409 b", rows like "| `a` |" return "a".
func codes(document *openapi3.T, schema string) []string {
	ref := document.Components.Schemas[schema]
	if ref == nil || ref.Value.Properties["code"] == nil {
		return nil
	}
	var all []string
	for _, row := range codeRow.FindAllStringSubmatch(ref.Value.Properties["code"].Value.Description, -1) {
		for _, name := range codeName.FindAllStringSubmatch(row[2], -1) {
			all = append(all, strings.TrimSpace(row[1]+" "+name[1]))
		}
	}
	return all
}

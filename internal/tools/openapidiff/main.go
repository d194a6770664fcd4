// Openapidiff prints the changes between two OpenAPI descriptions that break clients and
// that oasdiff passes over, one a line: an operation that no longer takes a
// credential that it took, and an error code that is no longer given.
//
//	go run ./internal/tools/openapidiff BASE.yaml REVISION.yaml
//
// It ends with 1 when there is one, and with 2 when it cannot tell. `make breaking`
// runs both.
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

// breaking lists what a client of base cannot do with revision.
func breaking(base, revision *openapi3.T) []string {
	return slices.Concat(credentialsRefused(base, revision), codesGone(base, revision))
}

// credentialsRefused finds the operations of both that do not take every credential any more.
func credentialsRefused(base, revision *openapi3.T) []string {
	var changes []string
	for _, path := range slices.Sorted(maps.Keys(base.Paths.Map())) {
		operations := base.Paths.Value(path).Operations()
		for _, method := range slices.Sorted(maps.Keys(operations)) {
			item := revision.Paths.Value(path)
			if item == nil || item.GetOperation(method) == nil {
				continue // oasdiff tells
			}
			taken := credentials(revision, item.GetOperation(method))
			for _, credential := range credentials(base, operations[method]) {
				if !slices.Contains(taken, credential) && !slices.Contains(taken, anyone) {
					changes = append(changes, fmt.Sprintf("%s %s took %s; now it takes %s", method, path, credential, strings.Join(taken, " or ")))
				}
			}
		}
	}
	return changes
}

const anyone = "no credential"

// credentials describes each alternative that an operation takes, as the schemes define it.
func credentials(document *openapi3.T, operation *openapi3.Operation) []string {
	requirements := document.Security
	if operation.Security != nil {
		requirements = *operation.Security
	}
	if len(requirements) == 0 {
		return []string{anyone}
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
			parts = []string{anyone}
		}
		alternatives = append(alternatives, strings.Join(parts, " with "))
	}
	return alternatives
}

// codesGone finds the error codes that revision does not name any more.
// Clients decide by them, but they are no enum, because new ones may be added.
func codesGone(base, revision *openapi3.T) []string {
	var changes []string
	for _, schema := range []string{"Error", "Violation"} {
		given := codes(revision, schema)
		for _, code := range codes(base, schema) {
			if !slices.Contains(given, code) {
				changes = append(changes, fmt.Sprintf("%s.code is no longer %s", schema, code))
			}
		}
	}
	return changes
}

var (
	codeRow  = regexp.MustCompile(`(?m)^\| (?:(\d{3}) \| )?([^|]*)\|`)
	codeName = regexp.MustCompile("`([a-z_]+)`")
)

// codes reads the table in the description of a schema's code: rows of "| 409 | `a` `b` |"
// give "409 a" and "409 b", rows of "| `a` |" give "a".
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

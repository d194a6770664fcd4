package main

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/getkin/kin-openapi/openapi3"
	"github.com/google/go-cmp/cmp"
)

const specFile = "../../api/openapi.yaml"

// spec is a small spec with what the program looks at, as the spec of Petstore has it.
const spec = `
openapi: 3.0.3
info: { title: Petstore, version: 1.0.0 }
security:
  - apiKey: []
paths:
  /pets:
    get:
      operationId: listPets
      responses: { '200': { description: Pets. } }
  /livez:
    get:
      security: []
      responses: { '200': { description: It runs. } }
components:
  securitySchemes:
    apiKey:
      type: http
      scheme: bearer
  schemas:
    Error:
      properties:
        code:
          type: string
          description: |
            | Status | Codes |
            |---|---|
            | 409 | ` + "`category_exists` `insufficient_stock` `pet_in_use`" + ` |
            | 422 | ` + "`unknown_category` `unknown_pet`" + ` |
    Violation:
      properties:
        code:
          type: string
          description: |
            | Code | In | Meaning |
            |---|---|---|
            | ` + "`too_short`" + ` | body | The value has too few characters. |
            | ` + "`blank`" + ` | body | The value contains only white space. |
`

// change is an edit of a spec: a text to find, its replacement, and so on.
type change []string

func (c change) of(t *testing.T, content string) string {
	t.Helper()
	for i := 0; i < len(c); i += 2 {
		if !strings.Contains(content, c[i]) {
			t.Fatalf("the spec does not contain %q", c[i])
		}
		content = strings.Replace(content, c[i], c[i+1], 1)
	}
	return content
}

// load reads a spec.
func load(t *testing.T, content string) *openapi3.T {
	t.Helper()
	document, err := openapi3.NewLoader().LoadFromData([]byte(content))
	if err != nil {
		t.Fatal(err)
	}
	return document
}

const (
	twoSchemes = "  securitySchemes:\n    other: { type: apiKey, in: header, name: X-Api-Key }\n"
	listPets   = "      operationId: listPets\n"
)

var breakingTests = []struct {
	name   string
	change change
	want   string // one of the changes, or "" for no change
}{
	{"no change", change{}, ""},
	{
		"another scheme",
		change{"      scheme: bearer\n", "      scheme: basic\n"},
		"GET /pets accepted http bearer, now only http basic",
	},
	{
		"a scheme of another kind",
		change{"      type: http\n      scheme: bearer\n", "      type: apiKey\n      in: header\n      name: X-Api-Key\n"},
		"GET /pets accepted http bearer, now only apiKey header X-Api-Key",
	},
	{
		"a second credential beside the first",
		change{"  - apiKey: []\n", "  - { apiKey: [], other: [] }\n", "  securitySchemes:\n", twoSchemes},
		"GET /pets accepted http bearer, now only http bearer with apiKey header X-Api-Key",
	},
	{
		"a second credential instead of the first",
		change{"  - apiKey: []\n", "  - apiKey: []\n  - other: []\n", "  securitySchemes:\n", twoSchemes},
		"",
	},
	{
		"an operation accepts another credential",
		change{listPets, listPets + "      security: [other: []]\n", "  securitySchemes:\n", twoSchemes},
		"GET /pets accepted http bearer, now only apiKey header X-Api-Key",
	},
	{
		"an operation without a credential now needs one",
		change{"      security: []\n", ""},
		"GET /livez accepted no credential, now only http bearer",
	},
	{
		"an operation needs no credential",
		change{listPets, listPets + "      security: []\n"},
		"",
	},
	{
		"an operation makes the credential optional",
		change{listPets, listPets + "      security: [other: [], {}]\n", "  securitySchemes:\n", twoSchemes},
		"",
	},
	{
		"a removed path, which oasdiff reports",
		change{"  /pets:\n", "  /animals:\n"},
		"",
	},
	{
		"a code renamed",
		change{"`insufficient_stock` `", "`out_of_stock` `"},
		"Error.code no longer has 409 insufficient_stock",
	},
	{
		"a code of another status",
		change{"| 422 | `unknown_category` ", "| 422 | ", "| 409 | ", "| 409 | `unknown_category` "},
		"Error.code no longer has 422 unknown_category",
	},
	{
		"a removed code of a violation",
		change{"| `blank` | body |", "| `too_short` | body |"},
		"Violation.code no longer has blank",
	},
	{"a new code", change{"| 409 | ", "| 409 | `pet_asleep` "}, ""},
	{"other wording", change{"The value contains only white space.", "only `white_space`"}, ""},
}

func TestBreaking(t *testing.T) {
	t.Parallel()
	base := load(t, spec)
	for _, test := range breakingTests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			got := breaking(base, load(t, test.change.of(t, spec)))
			if test.want == "" && len(got) > 0 || test.want != "" && !slices.Contains(got, test.want) {
				t.Errorf("the changes %q, want %q", got, test.want)
			}
		})
	}
}

// TestSpec changes the spec of Petstore, and wants the output and the exit codes of the program.
func TestSpec(t *testing.T) {
	t.Parallel()
	content, err := os.ReadFile(specFile)
	if err != nil {
		t.Fatal(err)
	}
	changed := change{
		listPets, listPets + "      security: []\n", "      security: []\n      responses:\n        '200': { $ref: '#/components/responses/Live' }\n", "      responses:\n        '200': { $ref: '#/components/responses/Live' }\n",
		"`insufficient_stock` `", "`out_of_stock` `", "| `blank` | body |", "| `too_short` | body |",
	}.of(t, string(content))
	file := filepath.Join(t.TempDir(), "openapi.yaml")
	if err := os.WriteFile(file, []byte(changed), 0o600); err != nil {
		t.Fatal(err)
	}
	for revision, want := range map[string]string{
		specFile: "",
		file:     "GET /livez accepted no credential, now only http bearer\nError.code no longer has 409 insufficient_stock\nViolation.code no longer has blank\n",
	} {
		var stdout, stderr strings.Builder
		code := run([]string{specFile, revision}, &stdout, &stderr)
		if diff := cmp.Diff(want, stdout.String()+stderr.String()); diff != "" || code != min(len(want), 1) {
			t.Errorf("openapidiff %s %s: exit code %d (-want +got):\n%s", specFile, revision, code, diff)
		}
	}
}

func TestUsage(t *testing.T) {
	t.Parallel()
	for _, args := range [][]string{{}, {specFile}, {specFile, "missing.yaml"}} {
		var stdout, stderr strings.Builder
		if code := run(args, &stdout, &stderr); code != 2 || stderr.String() == "" {
			t.Errorf("openapidiff %q: exit code %d, stderr %q; want 2 and a message", args, code, stderr.String())
		}
	}
}

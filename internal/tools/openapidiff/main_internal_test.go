package main

import (
	"bytes"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const specFile = "../../api/openapi.yaml"

// change is an edit of the spec: a text to find, its replacement, and so on.
type change []string

func (c change) file(t *testing.T) string {
	t.Helper()
	content, err := os.ReadFile(specFile)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(c); i += 2 {
		before, after, found := bytes.Cut(content, []byte(c[i]))
		if !found {
			t.Fatalf("%s does not contain %q", specFile, c[i])
		}
		content = bytes.Join([][]byte{before, after}, []byte(c[i+1]))
	}
	file := filepath.Join(t.TempDir(), "openapi.yaml")
	if err := os.WriteFile(file, content, 0o600); err != nil {
		t.Fatal(err)
	}
	return file
}

const (
	twoSchemes = "  securitySchemes:\n    other: { type: apiKey, in: header, name: X-Api-Key }\n"
	listPets   = "      operationId: listPets\n"
)

var breakingTests = []struct {
	name   string
	change change
	want   string // a line of the output, or "" for no output
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
		change{"runs. It needs no API key and ignores the query, `Accept` and preconditions.\n      security: []\n", "runs.\n"},
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
		change{"  /messages/{messageId}:\n", "  /letters/{messageId}:\n"},
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
	for _, test := range breakingTests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			var stdout, stderr strings.Builder
			code := run([]string{specFile, test.change.file(t)}, &stdout, &stderr)
			if test.want == "" {
				if diff := cmp.Diff("", stdout.String()+stderr.String()); diff != "" || code != 0 {
					t.Errorf("exit code %d:\n%s", code, diff)
				}
				return
			}
			if code != 1 || !slices.Contains(strings.Split(stdout.String(), "\n"), test.want) {
				t.Errorf("exit code %d, want 1 and\n%s\ngot\n%s%s", code, test.want, stdout.String(), stderr.String())
			}
		})
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

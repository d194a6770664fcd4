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

const description = "../../api/openapi.yaml"

// change edits the description as it is: text to find, text in its place, and so on.
type change []string

func (c change) file(t *testing.T) string {
	t.Helper()
	content, err := os.ReadFile(description)
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i < len(c); i += 2 {
		before, after, found := bytes.Cut(content, []byte(c[i]))
		if !found {
			t.Fatalf("%s does not hold %q", description, c[i])
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

func TestBreaking(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name   string
		change change
		want   string // a line, or nothing at all
	}{
		{"nothing", change{}, ""},
		{
			"another scheme",
			change{"      scheme: bearer\n", "      scheme: basic\n"},
			"GET /pets took http bearer; now it takes http basic",
		},
		{
			"a scheme of another kind",
			change{"      type: http\n      scheme: bearer\n", "      type: apiKey\n      in: header\n      name: X-Api-Key\n"},
			"GET /pets took http bearer; now it takes apiKey header X-Api-Key",
		},
		{
			"a second credential beside the first",
			change{"  - apiKey: []\n", "  - { apiKey: [], other: [] }\n", "  securitySchemes:\n", twoSchemes},
			"GET /pets took http bearer; now it takes http bearer with apiKey header X-Api-Key",
		},
		{
			"a second credential instead of the first",
			change{"  - apiKey: []\n", "  - apiKey: []\n  - other: []\n", "  securitySchemes:\n", twoSchemes},
			"",
		},
		{
			"one operation takes another credential",
			change{listPets, listPets + "      security: [other: []]\n", "  securitySchemes:\n", twoSchemes},
			"GET /pets took http bearer; now it takes apiKey header X-Api-Key",
		},
		{
			"one operation that took none needs one",
			change{"runs. It needs no API key and ignores the query, `Accept` and preconditions.\n      security: []\n", "runs.\n"},
			"GET /livez took no credential; now it takes http bearer",
		},
		{
			"one operation takes none",
			change{listPets, listPets + "      security: []\n"},
			"",
		},
		{
			"one operation can do without",
			change{listPets, listPets + "      security: [other: [], {}]\n", "  securitySchemes:\n", twoSchemes},
			"",
		},
		{
			"a path, of which oasdiff tells",
			change{"  /messages/{messageId}:\n", "  /letters/{messageId}:\n"},
			"",
		},
		{
			"a code renamed",
			change{"`insufficient_stock` `", "`out_of_stock` `"},
			"Error.code is no longer 409 insufficient_stock",
		},
		{
			"a code of another status",
			change{"| 422 | `unknown_category` ", "| 422 | ", "| 409 | ", "| 409 | `unknown_category` "},
			"Error.code is no longer 422 unknown_category",
		},
		{
			"a code of a violation gone",
			change{"| `blank` | body |", "| `too_short` | body |"},
			"Violation.code is no longer blank",
		},
		{"a code more", change{"| 409 | ", "| 409 | `pet_asleep` "}, ""},
		{"other words", change{"The value contains only white space.", "only `white_space`"}, ""},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			t.Parallel()
			var stdout, stderr strings.Builder
			code := run([]string{description, test.change.file(t)}, &stdout, &stderr)
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
	for _, args := range [][]string{{}, {description}, {description, "missing.yaml"}} {
		var stdout, stderr strings.Builder
		if code := run(args, &stdout, &stderr); code != 2 || stderr.String() == "" {
			t.Errorf("openapidiff %q: exit code %d, stderr %q; want 2 and a reason", args, code, stderr.String())
		}
	}
}

package main

import (
	"os"
	"os/exec"
	"reflect"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"petstore/internal/pgtest"
)

// TestTour runs the commands of the README and of docs/tour.md twice on the same
// data. They succeed both times, except for the errors that the texts show.
func TestTour(t *testing.T) {
	t.Parallel()
	dir := pgtest.Dir(t)
	// People take longer than a few seconds for all stories twice, so they stay within the
	// rate limit.
	p := begin(t, dir, []string{"DATABASE_URL=" + pgtest.New(t).OwnerURL, "PETSTORE_ADDR=127.0.0.1:0", "PETSTORE_RATE_LIMIT=0"}, "dev")
	base := p.address()
	for _, text := range []struct {
		file, start string
		codes       []string // error codes of the responses, in order
		want        []string
	}{
		{
			"../../README.md", "\n## Sell a pet in ten requests\n",
			[]string{"pet_not_available"},
			[]string{`"quantity":0,"status":"pending"`, "Idempotent-Replayed: true", `"quantity":1,"status":"available"`},
		},
		{
			"../../docs/tour.md", "# Tour\n",
			[]string{"pet_not_available", "order_complete", "validation_failed"},
			[]string{`"name":"Igor"`, `"status":"pending"`, `"status":"sold"`, "Deprecation: ", `"message":"Hello"`, `"name":"reporting"`, `{"petId":1,"quantity":0,"status":"pending"}`, `{"petId":1,"quantity":100,"status":"available"}`},
		},
	} {
		script := strings.ReplaceAll(tourScript(t, text.file, text.start), "http://localhost:8080", base)
		for round := range 2 {
			command := exec.CommandContext(t.Context(), "bash", "-c", script)
			command.Dir = dir
			output, err := command.CombinedOutput()
			if err != nil {
				t.Fatalf("%s, round %d: %v\n%s", text.file, round+1, err, output)
			}
			var codes []string
			for _, match := range regexp.MustCompile(`(?m)^\{"code":"(\w+)"`).FindAllStringSubmatch(string(output), -1) {
				codes = append(codes, match[1])
			}
			if diff := cmp.Diff(text.codes, codes); diff != "" {
				t.Errorf("%s, round %d: error codes (-want +got):\n%s\n%s", text.file, round+1, diff, output)
			}
			for _, want := range text.want {
				if !strings.Contains(string(output), want) {
					t.Errorf("%s, round %d: no %s in:\n%s", text.file, round+1, want, output)
				}
			}
		}
	}
}

// tourScript returns the shell code in the part of a Markdown file after start:
// up to the next heading of the same level.
func tourScript(t *testing.T, file, start string) string {
	t.Helper()
	markdown, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	_, part, found := strings.Cut(string(markdown), start)
	if !found {
		t.Fatalf("%s does not contain %q", file, start)
	}
	if strings.HasPrefix(strings.TrimSpace(start), "## ") {
		part, _, _ = strings.Cut(part, "\n## ")
	}
	blocks := regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(part, -1)
	if len(blocks) == 0 {
		t.Fatalf("%s has no shell code after %q", file, start)
	}
	script := "set -eu -o pipefail\n"
	for _, block := range blocks {
		script += block[1]
	}
	return script
}

// TestConfigurationIsDocumented compares the variables in docs/configuration.md
// with those that the program reads.
func TestConfigurationIsDocumented(t *testing.T) {
	t.Parallel()
	markdown, err := os.ReadFile("../../docs/configuration.md")
	if err != nil {
		t.Fatal(err)
	}
	documented := map[string]bool{}
	for _, match := range regexp.MustCompile("(?m)^\\| `(\\w+)` \\|").FindAllStringSubmatch(string(markdown), -1) {
		documented[match[1]] = true
	}
	for _, field := range reflect.VisibleFields(reflect.TypeFor[config]()) {
		name := field.Tag.Get("env")
		if name != "" && !documented[name] {
			t.Errorf("docs/configuration.md does not document %s", name)
		}
		delete(documented, name)
	}
	for name := range documented {
		if !strings.HasPrefix(name, "PETSTORE_TEST_") {
			t.Errorf("docs/configuration.md documents %s, which the program does not read", name)
		}
	}
}

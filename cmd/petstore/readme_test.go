package main

import (
	"fmt"
	"os/exec"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"petstore/internal/pgtest"
	"petstore/internal/tools/need"
)

// TestReadme runs the commands of the README twice on the same data. They succeed both times,
// except for the error that the text shows.
func TestReadme(t *testing.T) {
	t.Parallel()
	dir := pgtest.Dir(t)
	// People take longer than a few seconds, so they stay within the rate limit.
	p := begin(t, dir, []string{"DATABASE_URL=" + pgtest.New(t).OwnerURL, "PETSTORE_ADDR=127.0.0.1:0", "PETSTORE_RATE_LIMIT=0"}, "dev")
	script := strings.ReplaceAll(readmeScript(t), "http://localhost:8080", p.address())
	for round := range 2 {
		command := exec.CommandContext(t.Context(), "bash", "-c", script)
		command.Dir = dir
		output, err := command.CombinedOutput()
		if err != nil {
			t.Fatalf("round %d: %v\n%s", round+1, err, output)
		}
		var codes []string
		for _, match := range regexp.MustCompile(`(?m)^\{"code":"(\w+)"`).FindAllStringSubmatch(string(output), -1) {
			codes = append(codes, match[1])
		}
		if diff := cmp.Diff([]string{"pet_not_available"}, codes); diff != "" {
			t.Errorf("round %d: error codes (-want +got):\n%s\n%s", round+1, diff, output)
		}
		need.Contains(t, fmt.Sprintf("the output of round %d", round+1), string(output),
			`"quantity":0,"status":"pending"`, "Idempotent-Replayed: true", `"quantity":1,"status":"available"`)
	}
}

// readmeScript returns the shell code in the part of the README about ten requests.
func readmeScript(t *testing.T) string {
	t.Helper()
	markdown := readFile(t, "../../README.md")
	_, part, found := strings.Cut(markdown, "\n## Sell a pet in ten requests\n")
	if !found {
		t.Fatal("the README has no ten requests")
	}
	part, _, _ = strings.Cut(part, "\n## ")
	script := "set -eu -o pipefail\n"
	for _, block := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(part, -1) {
		script += block[1]
	}
	return script
}

// TestConfigurationIsDocumented compares the variables in docs/configuration.md
// with those that the program reads.
func TestConfigurationIsDocumented(t *testing.T) {
	t.Parallel()
	markdown := readFile(t, "../../docs/configuration.md")
	documented := map[string]bool{}
	for _, match := range regexp.MustCompile("(?m)^\\| `(\\w+)` \\|").FindAllStringSubmatch(markdown, -1) {
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

// TestSubcommandsAreDocumented compares the lists of subcommands in docs/commands.md with the program.
func TestSubcommandsAreDocumented(t *testing.T) {
	t.Parallel()
	lists := regexp.MustCompile("(?m)^\\* `petstore (\\w+)` .*: `(.*)`\\.$")
	found := lists.FindAllStringSubmatch(readFile(t, "../../docs/commands.md"), -1)
	if len(found) < 2 {
		t.Errorf("docs/commands.md has the lists %q, want more", found)
	}
	for _, match := range found {
		command, _, err := (&program{}).rootCommand().Find(match[1:2])
		need.OK(t, err)
		var names []string
		for _, one := range command.Commands() {
			names = append(names, one.Name())
		}
		documented := strings.Split(match[2], "`, `")
		slices.Sort(documented)
		need.Same(t, names, documented, "the subcommands of %s (want: the program, got: the text)", match[1])
	}
}

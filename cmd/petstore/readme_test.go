package main

import (
	"os"
	"os/exec"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"petstore/internal/pgtest"
)

// TestTour runs the commands of the README's tour twice on the same store, as a
// reader would: they succeed both times, but for the errors that the tour shows.
func TestTour(t *testing.T) {
	t.Parallel()
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, tour, _ := strings.Cut(string(readme), "\n## A tour in five minutes\n")
	tour, _, found := strings.Cut(tour, "\n## ")
	if !found {
		t.Fatal("the README has no tour")
	}
	dir := openDir(t)
	p := begin(t, dir, []string{"DATABASE_URL=" + pgtest.New(t).OwnerURL, "PETSTORE_ADDR=127.0.0.1:0"}, "dev")
	base := p.address()
	script := "set -eu -o pipefail\n"
	for _, block := range regexp.MustCompile("(?s)```sh\n(.*?)```").FindAllStringSubmatch(tour, -1) {
		script += strings.ReplaceAll(block[1], "http://localhost:8080", base)
	}
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
		if diff := cmp.Diff([]string{"pet_not_available", "order_complete", "validation_failed"}, codes); diff != "" {
			t.Errorf("round %d: errors (-want +got):\n%s\n%s", round+1, diff, output)
		}
		for _, want := range []string{`"name":"Igor"`, `"status":"pending"`, `"status":"sold"`, "Deprecation: ", `"message":"Hello"`, `"name":"reporting"`} {
			if !strings.Contains(string(output), want) {
				t.Errorf("round %d: no %s in:\n%s", round+1, want, output)
			}
		}
	}
}

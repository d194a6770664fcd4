// Package docstest reads the code of the guides, for tests that run it.
package docstest

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

// Block is a block of code that a guide marks with "run" or "run=NAME".
type Block struct{ Language, Name, Code string }

var block = regexp.MustCompile("(?s)\n```(\\w+) run(?:=([^\\s]+))?(?: [^\n]*)?\n(.*?\n)```\n")

// maxLine is the longest line that a panel shows without scrolling.
const maxLine = 72

// Read returns the code in a file that tests run. A line that is too long fails the test.
func Read(t testing.TB, file string) []Block {
	t.Helper()
	text, err := os.ReadFile(file) //nolint:gosec // a test names the file
	check(t, err)
	var all []Block
	for _, match := range block.FindAllSubmatch(text, -1) {
		b := Block{string(match[1]), string(match[2]), string(match[3])}
		for line := range strings.Lines(b.Code) {
			if utf8.RuneCountInString(line) > maxLine+1 && b.Language != "http" {
				t.Errorf("%s: a line is longer than %d characters: %s", file, maxLine, line)
			}
		}
		all = append(all, b)
	}
	if len(all) == 0 {
		t.Fatalf("%s has no code to run", file)
	}
	return all
}

// Programs joins the blocks of each language, in order. A block with a name is a program of its
// own under that name.
func Programs(t testing.TB, file string) map[string]string {
	t.Helper()
	programs := map[string]string{}
	for _, b := range Read(t, file) {
		name := b.Language
		if b.Name != "" {
			name = b.Name
		}
		programs[name] += b.Code
	}
	return programs
}

func check(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

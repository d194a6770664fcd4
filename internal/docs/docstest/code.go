// Package docstest reads the code of the guides, for tests that run it, and finds ports for it.
package docstest

import (
	"math/rand/v2"
	"net"
	"os"
	"regexp"
	"strconv"
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
	if err != nil {
		t.Fatal(err)
	}
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

// FreePort returns a port that nothing listens on, below those that the system hands out.
func FreePort(t testing.TB) string {
	t.Helper()
	const first, number = 30_000, 2_768
	for {
		port := strconv.Itoa(first + rand.N(number)) //nolint:gosec // any port will do
		listener, err := (&net.ListenConfig{}).Listen(t.Context(), "tcp", "localhost:"+port)
		if err == nil {
			listener.Close()
			return port
		}
		if t.Context().Err() != nil {
			t.Fatal(err)
		}
	}
}

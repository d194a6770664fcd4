package main

import (
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"petstore/internal/tools/need"
)

// badPattern is a pattern of bad prose, and the better words.
type badPattern struct {
	pattern *regexp.Regexp
	instead string
}

// badProse lists patterns that plain English does not need, and what to write
// instead. They apply to single sentences, headings and table cells.
var badProse = []badPattern{
	{regexp.MustCompile(`(?i)\banswer(s|ed|ing)?\b`), "response, or return"},
	{regexp.MustCompile(`(?i)\bmembers?\b`), "field"},
	{regexp.MustCompile(`(?i)\bthe description\b`), "the spec, or the API reference"},
	{regexp.MustCompile(`(?i)\bsections? \d+ of the contract\b`), "a link to a heading, an RFC or a decision record"},
	{regexp.MustCompile(`(?i)\b(what|who|which) (is|are) none\b`), "the name of the thing"},
	{regexp.MustCompile(`(?i)\b(is|are|was|were|be) (told|asked|had|heard)\b`), "the actor first: the server, the client, you"},
	{regexp.MustCompile(`^(What|Who|Whether)\b[^?]*$`), "the subject first, or a question mark"},
	{regexp.MustCompile(`(?i)([,;]|\b(of|to|for|with|by|beside|than|and|but)) (what|who) (is|are|was|were|has|comes|needs|takes|serves|sends|waits)\b`), "the name of the thing or person"},
	{regexp.MustCompile(`(?i)\bwhoever\b`), "anyone who, or a client that"},
	{regexp.MustCompile(`(?i)\brefuse[sd]? to start\b`), "does not start"},
	{regexp.MustCompile(`(?i)\b(mended|anew|the business of|counts? (it|them) not)\b`), "plain words: fixed, again, handled by, does not count"},
	{regexp.MustCompile(`(?i)\bas (long|often|many) as you like\b`), "the number"},
}

// maxWords is the greatest length of a sentence. A code span counts as one word.
const maxWords = 25

// TestProse checks the Markdown files against badProse and maxWords. It does not
// check code blocks.
func TestProse(t *testing.T) {
	t.Parallel()
	files := markdownFiles(t)
	for _, name := range slices.Sorted(maps.Keys(files)) {
		for _, mistake := range proseMistakes(files[name], badProse, maxWords) {
			t.Errorf("%s: %s", name, mistake)
		}
	}
}

func TestProseMistakes(t *testing.T) {
	t.Parallel()
	for _, test := range []struct {
		markdown string
		want     int
	}{
		{"The server returns every error at once.\n", 0},
		{"```\nThe server answers.\n```\n", 0},
		{"Call `answer`, in [answer.go](answer.go).\n", 0},
		{"What is wrong?\n", 0},
		{strings.Repeat("word ", maxWords-1) + "`a b c`.\n", 0},
		{"A request is answered 404.\n", 1},
		{"An unknown\nmember is an error. See the description.\n", 2},
		{"* What is wrong is told.\n", 2},
		{"| Header | Rule |\n|---|---|\n| a | Whoever comes first. |\n", 1},
		{"The operator knows of what is down.\n", 1},
		{strings.Repeat("word ", maxWords) + "more.\n", 1},
	} {
		if mistakes := proseMistakes(test.markdown, badProse, maxWords); len(mistakes) != test.want {
			t.Errorf("%q: got %d mistakes, want %d: %q", test.markdown, len(mistakes), test.want, mistakes)
		}
	}
}

// TestLinks checks that the relative links of the Markdown files lead to files,
// and their fragments to headings.
func TestLinks(t *testing.T) {
	t.Parallel()
	files := markdownFiles(t)
	for name, text := range files {
		if strings.HasPrefix(name, "internal/docs/") {
			continue // internal/docs checks the links of the pages
		}
		for _, match := range regexp.MustCompile(`\]\(([^)\s]*)\)`).FindAllStringSubmatch(codeBlock.ReplaceAllString(text, ""), -1) {
			target, fragment, _ := strings.Cut(match[1], "#")
			if strings.Contains(target, "://") {
				continue
			}
			path := name
			if target != "" {
				path = filepath.Join(filepath.Dir(name), target)
			}
			if _, err := os.Stat(filepath.Join(repository, path)); err != nil {
				t.Errorf("%s: the link to %s leads nowhere", name, match[1])
			} else if fragment != "" && !slices.Contains(anchors(files[path]), fragment) {
				t.Errorf("%s: %s has no heading for #%s", name, path, fragment)
			}
		}
	}
}

// TestDecisionsAreListed compares the headings of the decision records with their list.
func TestDecisionsAreListed(t *testing.T) {
	t.Parallel()
	files := markdownFiles(t)
	var want, got []string
	for _, name := range slices.Sorted(maps.Keys(files)) {
		if base := filepath.Base(name); filepath.Dir(name) == "docs/decisions" && base != "README.md" {
			heading, _, _ := strings.Cut(strings.TrimPrefix(files[name], "# "), "\n")
			number, title, _ := strings.Cut(heading, ". ")
			want = append(want, fmt.Sprintf("%s. [%s](%s)", number, title, base))
		}
	}
	for line := range strings.Lines(files["docs/decisions/README.md"]) {
		if line[0] >= '1' && line[0] <= '9' {
			got = append(got, strings.TrimSuffix(line, "\n"))
		}
	}
	need.Same(t, want, got, "docs/decisions/README.md")
}

// repository is the root of the project, as seen from the folder of this package.
const repository = "../.."

// markdownFiles returns the texts of all Markdown files by their paths in the
// repository.
func markdownFiles(t *testing.T) map[string]string {
	t.Helper()
	files := map[string]string{}
	for _, name := range filesOf(t, func(name string) bool { return filepath.Ext(name) == ".md" }) {
		files[name] = readFile(t, filepath.Join(repository, name))
	}
	if files["README.md"] == "" || files["docs/decisions/README.md"] == "" {
		t.Fatalf("the README is missing among %d Markdown files", len(files))
	}
	return files
}

// proseMistakes lists the mistakes of a Markdown text, with corrections: patterns, and sentences that
// are longer than most words.
func proseMistakes(markdown string, patterns []badPattern, most int) []string {
	var mistakes []string
	for _, sentence := range sentences(markdown) {
		for _, bad := range patterns {
			if found := bad.pattern.FindString(sentence); found != "" {
				mistakes = append(mistakes, fmt.Sprintf("%q: write %s instead of %q", sentence, bad.instead, found))
			}
		}
		if words := len(strings.Fields(sentence)); words > most {
			mistakes = append(mistakes, fmt.Sprintf("%q: split the sentence of %d words into some of at most %d", sentence, words, most))
		}
	}
	return mistakes
}

var (
	codeBlock   = regexp.MustCompile("(?ms)^ *```.*?\n *```$")
	codeSpan    = regexp.MustCompile("`[^`\n]+`|\\b[\\w/]+\\.(go|sql|md|lua|yaml|java|py|ts)\\b")
	link        = regexp.MustCompile(`!?\[([^\]]*)\]\([^)]*\)`)
	blockStart  = regexp.MustCompile(`(?m)^ *(\* |- |\d+\. |#+ |\|)`)
	sentenceEnd = regexp.MustCompile(`[.!?:][)"*]*\s+|[.!?:][)"*]*$| \| `)
)

// sentences returns the sentences of a Markdown text without markup. Each code
// span is the word `code`, and there are no code blocks. List items, headings and
// table cells are sentences of their own, and a colon ends a sentence.
func sentences(markdown string) []string {
	text := codeBlock.ReplaceAllString(markdown, "")
	text = link.ReplaceAllString(text, "$1")
	text = codeSpan.ReplaceAllString(text, "`code`")
	text = blockStart.ReplaceAllString(text, "\n\n")
	text = strings.ReplaceAll(text, "**", "")
	var all []string
	for block := range strings.SplitSeq(text, "\n\n") {
		block = strings.Join(strings.Fields(block), " ")
		for block != "" {
			end := len(block)
			if found := sentenceEnd.FindStringIndex(block); found != nil {
				end = found[1]
			}
			if sentence := strings.Trim(block[:end], "| "); strings.Trim(sentence, "-. ") != "" {
				all = append(all, sentence)
			}
			block = block[end:]
		}
	}
	return all
}

// anchors returns the fragments of the headings of a Markdown text, as GitHub makes
// them.
func anchors(markdown string) []string {
	var all []string
	for _, match := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(codeBlock.ReplaceAllString(markdown, ""), -1) {
		plain := regexp.MustCompile(`[^\w\- ]`).ReplaceAllString(strings.ToLower(match[1]), "")
		all = append(all, strings.ReplaceAll(plain, " ", "-"))
	}
	return all
}

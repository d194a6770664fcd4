package docs_test

import (
	"bytes"
	"compress/gzip"
	"encoding/json"
	"io"
	"os"
	"path"
	"regexp"
	"strings"
	"sync"
	"testing"

	"github.com/goccy/go-yaml"

	"petstore/internal/docs"
	"petstore/internal/tools/need"
)

var problems = []docs.Problem{
	{Status: 401, Code: "missing_api_key", Meaning: "Send an API key as Authorization: Bearer <API_KEY>.", Remedy: "Add `Authorization: Bearer <API_KEY>`."},
	{Status: 503, Code: "unavailable", Meaning: "The service is unavailable.", Remedy: "Wait."},
	{Status: 504, Code: "unavailable", Meaning: "The service is late.", Remedy: "Wait."},
}

// specJSON is openapi.yaml as JSON, made once.
var specJSON = sync.OnceValues(func() ([]byte, error) {
	source, err := os.ReadFile(specFile)
	if err != nil {
		return nil, err
	}
	return yaml.YAMLToJSON(source)
})

// spec returns openapi.yaml as JSON.
func spec(t *testing.T) []byte {
	t.Helper()
	json := need.Value(specJSON())(t)
	return json
}

// site is the result of [docs.New] for all tests. A test that fails to make it fails the others, too.
var site struct {
	once  sync.Once
	files map[string]*docs.File
}

// newFiles returns the files, which no test changes.
func newFiles(t *testing.T) map[string]*docs.File {
	t.Helper()
	site.once.Do(func() { site.files = makeFiles(t) })
	if site.files == nil {
		t.Fatal("another test could not make the files")
	}
	return site.files
}

func makeFiles(t *testing.T) map[string]*docs.File {
	t.Helper()
	return docs.New(docs.Site{Spec: spec(t), Problems: problems})
}

// isPage reports whether a file is a page or an asset. Only the JSON of assets changes.
func isPage(name string) bool { return !strings.HasPrefix(name, "/docs/assets/") }

// isHTML reports whether a file is a page for browsers.
func isHTML(name string) bool {
	return isPage(name) && path.Ext(name) == "" && !strings.HasPrefix(name, "/.well-known/")
}

func TestFiles(t *testing.T) {
	t.Parallel()
	types := map[string]string{
		"": "text/html; charset=utf-8", ".md": "text/markdown; charset=utf-8", ".txt": "text/markdown; charset=utf-8",
		".well-known": `application/linkset+json; profile="https://www.rfc-editor.org/info/rfc9727"`,
		".js":         "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml", ".json": "application/json",
	}
	total := 0
	for name, file := range newFiles(t) {
		kind := path.Ext(name)
		if name == "/.well-known/api-catalog" {
			kind = ".well-known"
		}
		if want := types[kind]; file.ContentType != want {
			t.Errorf("%s is %q, want %q", name, file.ContentType, want)
		}
		want := map[string]string{"Cache-Control": "public, max-age=31536000, immutable"}
		if isPage(name) || kind == ".json" {
			want["Cache-Control"] = "public, no-cache"
		}
		if isHTML(name) {
			want["Content-Security-Policy"] = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
		}
		for field, value := range want {
			if got := file.Fields.Get(field); got != value {
				t.Errorf("%s: %s %q, want %q", name, field, got, value)
			}
		}

		plain, compressed := file.Plain(), file.Compressed()
		if tag := regexp.MustCompile(`^"[\w-]{22}"$`); plain.ETag == compressed.ETag || !tag.MatchString(plain.ETag) || !tag.MatchString(compressed.ETag) {
			t.Errorf("%s: the tags are %q and %q", name, plain.ETag, compressed.ETag)
		}
		unpacking := need.Value(gzip.NewReader(bytes.NewReader(compressed.Text)))(t)
		unpacked, err := io.ReadAll(unpacking)
		if err != nil || !bytes.Equal(unpacked, plain.Text) {
			t.Errorf("%s: the codings differ (%v)", name, err)
		}
		if len(compressed.Text) >= len(plain.Text) && len(plain.Text) > 500 {
			t.Errorf("%s: %d bytes, compressed %d", name, len(plain.Text), len(compressed.Text))
		}
		total += len(compressed.Text)
	}
	t.Logf("all files, compressed: %d bytes", total)
	if total > 600_000 {
		t.Errorf("the pages and their assets are %d bytes", total)
	}
}

// TestPagesKeepTheirPolicy: the pages contain nothing that their Content-Security-Policy
// forbids.
func TestPagesKeepTheirPolicy(t *testing.T) {
	t.Parallel()
	inline := regexp.MustCompile(`(?i)<style|\sstyle=|\son[a-z]+="|"javascript:|<script>|<script (?:defer )?[^>]*></script>.*\S.*</script>`)
	for name, file := range newFiles(t) {
		if found := inline.FindString(string(file.Plain().Text)); found != "" && isHTML(name) {
			t.Errorf("%s contains %s", name, found)
		}
	}
}

// TestLinks: each link and import leads to a file, and its fragment to an id.
func TestLinks(t *testing.T) {
	t.Parallel()
	files := newFiles(t)
	inHTML, inCode := regexp.MustCompile(`(?:src|href)="([^"]*)"`), regexp.MustCompile(`from "(\./[^"]*)"`)
	inMarkdown := regexp.MustCompile(`\]\(([^)\s]*)\)`)
	for name, file := range files {
		text := string(file.Plain().Text)
		pattern := inCode
		switch {
		case isHTML(name):
			pattern = inHTML
		case path.Ext(name) == ".md" || path.Ext(name) == ".txt":
			pattern, text = inMarkdown, regexp.MustCompile("(?s)\n```.*?\n```\n|`[^`\n]*`").ReplaceAllString(text, "")
		}
		for _, match := range pattern.FindAllStringSubmatch(text, -1) {
			target, fragment, _ := strings.Cut(match[1], "#")
			if strings.Contains(target, "://") {
				continue
			}
			to := name
			if target != "" {
				to = path.Join(path.Dir(name), target)
			}
			if strings.HasPrefix(to, "/openapi") || to == docs.CollectionPath { // the server adds them
				continue
			}
			if files[to] == nil {
				t.Errorf("%s links to %s, which does not exist", name, match[1])
				continue
			}
			if to == docs.ErrorsPath || to == docs.ErrorsPath+".md" || to == docs.ConsolePath {
				continue // TestLinksToErrors knows all errors, and modules read the fragments of the console
			}
			there := string(files[to].Plain().Text)
			if fragment != "" && !strings.Contains(there, `id="`+fragment+`"`) && !strings.Contains(there, "{#"+fragment+"}") {
				t.Errorf("%s links to %s, which has no such part", name, match[1])
			}
		}
	}
}

// TestAssetsAreNamedByContent: the same assets always get the same names.
func TestAssetsAreNamedByContent(t *testing.T) {
	t.Parallel()
	other := makeFiles(t)
	for name := range newFiles(t) {
		if other[name] == nil {
			t.Errorf("%s was built only once", name)
		}
		if !isPage(name) && !regexp.MustCompile(`^/docs/assets/[0-9a-f]{16}/[a-z-]+\.(js|css|svg|json)$`).MatchString(name) {
			t.Errorf("the name of an asset is %s", name)
		}
	}
}

// TestErrorsPage: the page has every problem, escaped, under its code.
func TestErrorsPage(t *testing.T) {
	t.Parallel()
	text := string(newFiles(t)[docs.ErrorsPath].Plain().Text)
	for _, want := range []string{
		`id="missing_api_key"`, `id="unavailable"`, `href="#unavailable"`, `id="unavailable_504"`, `href="#unavailable_504"`, "1.0.0",
		"Send an API key as Authorization: Bearer &lt;API_KEY&gt;.", "Add <code>Authorization: Bearer &lt;API_KEY&gt;</code>.",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the page does not contain %s", want)
		}
	}
}

// TestChangelogIsCurrent: the page has the changelog of the repository, which Go cannot embed
// from there.
func TestChangelogIsCurrent(t *testing.T) {
	t.Parallel()
	page := need.Value(os.ReadFile("pages/changelog.md"))(t)
	changelog := need.Value(os.ReadFile("../../CHANGELOG.md"))(t)
	if !bytes.Equal(page, changelog) {
		t.Error("pages/changelog.md differs from CHANGELOG.md; run make generate")
	}
}

// TestSearchWords: each word that the search knows of a guide is in its text, and not two words in one.
func TestSearchWords(t *testing.T) {
	t.Parallel()
	files := newFiles(t)
	var index []struct{ Kind, Path, Text string }
	for name, file := range files {
		if path.Base(name) == "search.json" {
			need.OK(t, json.Unmarshal(file.Plain().Text, &index))
		}
	}
	checked, withoutTags := 0, strings.NewReplacer("<sup>", "", "</sup>", "")
	for _, entry := range index {
		if entry.Kind != "guide" && entry.Kind != "section" {
			continue
		}
		guide, _, _ := strings.Cut("/"+entry.Path, "#")
		text := withoutTags.Replace(strings.ToLower(string(files[guide+".md"].Plain().Text)))
		for word := range strings.FieldsSeq(entry.Text) {
			if checked++; !strings.Contains(text, word) {
				t.Errorf("%s has no %s", entry.Path, word)
			}
		}
	}
	if checked < 1000 {
		t.Errorf("the search knows %d words of guides", checked)
	}
}

package docs_test

import (
	"bytes"
	"compress/gzip"
	"io"
	"os"
	"path"
	"regexp"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"petstore/internal/docs"
)

var problems = []docs.Problem{
	{Status: 401, Code: "missing_api_key", Meaning: "Send an API key as Authorization: Bearer <API_KEY>.", Remedy: "Add `Authorization: Bearer <API_KEY>`."},
	{Status: 503, Code: "unavailable", Meaning: "The service is unavailable.", Remedy: "Wait."},
	{Status: 504, Code: "unavailable", Meaning: "The service is late.", Remedy: "Wait."},
}

// spec returns openapi.yaml as JSON.
func spec(t *testing.T) []byte {
	t.Helper()
	source, err := os.ReadFile("../api/openapi.yaml")
	if err != nil {
		t.Fatal(err)
	}
	json, err := yaml.YAMLToJSON(source)
	if err != nil {
		t.Fatal(err)
	}
	return json
}

func newFiles(t *testing.T) map[string]*docs.File {
	t.Helper()
	files, err := docs.New(docs.Site{Spec: spec(t), Problems: problems})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// isPage reports whether a file is a page, which changes, or an asset, which does
// not.
func isPage(name string) bool { return !strings.HasPrefix(name, "/docs/assets/") }

func TestFiles(t *testing.T) {
	t.Parallel()
	types := map[string]string{"": "text/html; charset=utf-8", ".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml", ".json": "application/json"}
	total := 0
	for name, file := range newFiles(t) {
		if want := types[path.Ext(name)]; file.ContentType != want {
			t.Errorf("%s is %q, want %q", name, file.ContentType, want)
		}
		want := map[string]string{"Cache-Control": "public, max-age=31536000, immutable"}
		if isPage(name) {
			want["Cache-Control"] = "public, no-cache"
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
		unpacking, err := gzip.NewReader(bytes.NewReader(compressed.Text))
		if err != nil {
			t.Fatal(err)
		}
		unpacked, err := io.ReadAll(unpacking)
		if err != nil || !bytes.Equal(unpacked, plain.Text) {
			t.Errorf("%s: the codings differ (%v)", name, err)
		}
		if len(compressed.Text) >= len(plain.Text) {
			t.Errorf("%s: %d bytes, compressed %d", name, len(plain.Text), len(compressed.Text))
		}
		total += len(compressed.Text)
	}
	t.Logf("all files, compressed: %d bytes", total)
	if total > 600_000 {
		t.Errorf("the pages and their assets are %d bytes", total)
	}
}

// TestPagesKeepTheirPolicy: the pages contain nothing that their
// Content-Security-Policy forbids, and all files that they load exist.
func TestPagesKeepTheirPolicy(t *testing.T) {
	t.Parallel()
	files := newFiles(t)
	inline := regexp.MustCompile(`(?i)<style|\sstyle=|\son[a-z]+="|javascript:|<script>|<script (?:defer )?[^>]*></script>.*\S.*</script>`)
	loads := regexp.MustCompile(`(?:src|href)="([^"]*)"|from "([^"]*)"`)
	for name, file := range files {
		text := string(file.Plain().Text)
		if found := inline.FindString(text); found != "" && isPage(name) {
			t.Errorf("%s contains %s", name, found)
		}
		for _, match := range loads.FindAllStringSubmatch(text, -1) {
			target := match[1] + match[2]
			target, _, _ = strings.Cut(target, "#")
			switch {
			case target == "" || strings.HasPrefix(target, "https://www.rfc-editor.org/") || target == "https://www.standardwebhooks.com":
			case path.Base(target) == "openapi.json" || path.Base(target) == "openapi.yaml":
				if got := path.Join(path.Dir(name), target); path.Dir(got) != "/" {
					t.Errorf("%s loads %s", name, got)
				}
			default:
				if got := path.Join(path.Dir(name), target); files[got] == nil {
					t.Errorf("%s links to %s, which does not exist", name, got)
				}
			}
		}
	}
}

// TestAssetsAreNamedByContent: the same assets always get the same names.
func TestAssetsAreNamedByContent(t *testing.T) {
	t.Parallel()
	other := newFiles(t)
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

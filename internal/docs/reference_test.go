package docs_test

import (
	"encoding/json"
	"html"
	"regexp"
	"slices"
	"strings"
	"testing"

	"petstore/internal/tools/need"
)

// described is an operation of the spec, as far as the tests need it.
type described struct {
	OperationID string
	Tags        []string
	Summary     string
	Deprecated  bool
	HideTryIt   bool   `json:"x-hideTryItPanel"`
	Stability   string `json:"x-stability"`
	Parameters  []struct{ Name string }
	Responses   map[string]json.RawMessage
	Samples     []struct{ Lang, Source string } `json:"x-codeSamples"`

	method, path string
}

func operations(t *testing.T) []described {
	t.Helper()
	var document struct {
		Paths map[string]map[string]json.RawMessage
	}
	need.OK(t, json.Unmarshal(spec(t), &document))
	var all []described
	for path, item := range document.Paths {
		for method, text := range item {
			if method == "parameters" {
				continue
			}
			o := described{method: strings.ToUpper(method), path: path}
			need.OK(t, json.Unmarshal(text, &o))
			all = append(all, o)
		}
	}
	return all
}

var (
	article = regexp.MustCompile(`(?s)<article class="operation" id="(\w+)".*?</article>`)
	tags    = regexp.MustCompile(`(?s)<[^>]*>`)
)

// TestReference: without a script, the page of its tag has all of an operation: its method and
// path, parameters, responses, a sample and an example.
func TestReference(t *testing.T) {
	t.Parallel()
	files := newFiles(t)
	for _, o := range operations(t) {
		page := string(files["/docs/reference/"+o.Tags[0]].Plain().Text)
		if elements := strings.Count(page, "<") - strings.Count(page, "</"); elements > 2500 {
			t.Errorf("the page of %s has %d elements", o.Tags[0], elements)
		}
		part := ""
		for _, match := range article.FindAllStringSubmatch(page, -1) {
			if match[1] == o.OperationID {
				part = match[0]
			}
		}
		text := html.UnescapeString(tags.ReplaceAllString(part, ""))
		want := []string{o.Summary, o.method, o.path, o.Samples[0].Source}
		for _, p := range o.Parameters {
			want = append(want, p.Name)
		}
		for status := range o.Responses {
			want = append(want, status)
		}
		for _, w := range want {
			if !strings.Contains(text, w) {
				t.Errorf("%s lacks %q", o.OperationID, w)
			}
		}
		for text, has := range map[string]bool{
			`data-try="` + o.OperationID: !o.HideTryIt, "will be sunset on 31 December 2027": o.Deprecated,
		} {
			if strings.Contains(part, text) != has {
				t.Errorf("%s: %q is there: %t", o.OperationID, text, !has)
			}
		}
		if o.Stability != "" && !strings.Contains(page, "badge-"+o.Stability) {
			t.Errorf("the page of %s lacks its badge", o.OperationID)
		}
		markdown := string(files["/docs/reference/"+o.Tags[0]+".md"].Plain().Text)
		for _, w := range []string{"{#" + o.OperationID + "}", "`" + o.method + " " + o.path + "`", o.Samples[0].Source} {
			if !strings.Contains(markdown, w) {
				t.Errorf("the Markdown of %s lacks %q", o.OperationID, w)
			}
		}
		if strings.Contains(markdown, "****") {
			t.Errorf("the Markdown of %s has bold text twice", o.OperationID)
		}
	}
}

// TestBounds: the page says that a value must not be the minimum itself.
func TestBounds(t *testing.T) {
	t.Parallel()
	page := string(newFiles(t)["/docs/reference/models.md"].Plain().Text)
	if want := "`probability` (number): The share of requests that the rule applies to. Above 0, at most 1."; !strings.Contains(page, want) {
		t.Errorf("the page lacks %q", want)
	}
}

// TestModelsHaveExamples: each model of a response has an example.
func TestModelsHaveExamples(t *testing.T) {
	t.Parallel()
	_, page, _ := strings.Cut(string(newFiles(t)["/docs/reference/models.md"].Plain().Text), "\n## ")
	for model := range strings.SplitSeq(page, "\n## ") {
		if name, _, _ := strings.Cut(model, " "); !strings.Contains(model, "\n```json\n") {
			t.Errorf("%s has no example", name)
		}
	}
}

// TestGroups: the sidebar has the tags in the groups and in the order of the spec.
func TestGroups(t *testing.T) {
	t.Parallel()
	page := string(newFiles(t)["/docs/reference/pets"].Plain().Text)
	var got []string
	_, sidebar, _ := strings.Cut(page, `id="sidebar"`)
	sidebar, _, _ = strings.Cut(sidebar, "</nav>")
	for _, match := range regexp.MustCompile(`<p class="nav-group">([^<]*)</p>|docs/reference/([a-z]+)"`).FindAllStringSubmatch(sidebar, -1) {
		got = append(got, match[1]+match[2])
	}
	want := []string{"Guides", "Pets", "pets", "categories", "Store", "store", "inventory", "More operations", "messages", "events", "webhooks", "accounts", "sandboxes", "clients", "meta", "Appendix", "models", "all"}
	if !slices.Equal(got, want) {
		t.Errorf("the sidebar has %q", got)
	}
}

package docs

import (
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/go-json-experiment/json"
	"github.com/yuin/goldmark/ast"
	goldtext "github.com/yuin/goldmark/text"
)

// found is an entry of search.json: a place that the search finds.
type found struct {
	Kind   string `json:"kind"` // guide, section, tag, operation, event, error, header, parameter, field, property, model or change
	Title  string `json:"title"`
	Path   string `json:"path"` // relative to the server
	Where  string `json:"where,omitzero"`
	Method string `json:"method,omitzero"`
	Names  string `json:"names,omitzero"` // other words for it
	Text   string `json:"text,omitzero"`  // the words of its text, each once
}

// otherWords are words of readers that a guide or a tag does not use for its subject.
var otherWords = map[string]string{
	"quickstart":     "getting started tutorial first request hello install",
	"authentication": "auth authorization login token bearer credentials permission api key",
	"lists":          "pagination paging paginate cursor next page filter sort count total",
	"retries":        "backoff handling",
	"idempotency":    "idempotent duplicate twice",
	"concurrency":    "etag if-match optimistic locking lost update version conflict",
	"limits":         "rate limit rate limiting throttling quota too many requests",
	"stock":          "inventory quantity availability",
	"events":         "feed sync polling long poll sse server-sent",
	"webhooks":       "callback signature verify hmac receiver",
	"clients":        "inspect traffic history judge sdk",
	"sandboxes":      "testing test environment fixtures ci",
	"console":        "dashboard inspect debug traffic browser",
	"faults":         "chaos fault injection simulate failure latency outage",
	"store":          "order orders",
	"meta":           "health spec",
}

// explained are the parts of guides that explain a header.
var explained = map[string]string{
	"Idempotency-Key": "idempotency#send",
	"If-Match":        "concurrency#preconditions",
	"If-None-Match":   "concurrency#preconditions",
	"ETag":            "concurrency#preconditions",
	"Link":            "lists#pages",
	"X-Total-Count":   "lists#counts",
	"RateLimit":       "limits#rate",
	"Last-Event-ID":   "events#stream",
}

// eventTypes is the page whose parts are the types of events.
const eventTypes = "docs/reference/events#"

// search returns search.json: all that readers can look for.
func (s *Site) search() []byte {
	var all []found
	for _, p := range s.pages {
		if p.source != "" && !p.hidden {
			all = append(all, p.entries()...)
		}
	}
	all = append(all, s.operationEntries()...)
	all = append(all, s.eventEntries()...)
	all = append(all, s.errorEntries()...)
	all = append(all, s.headerEntries()...)
	all = append(all, s.fieldEntries()...)
	for _, m := range s.reference.Models {
		all = append(all, found{Kind: "model", Title: m.Name, Path: modelPath(m.Name), Text: terms(m.Schema.Description)})
	}
	return must(json.Marshal(all))
}

// entries returns a guide and its parts.
func (p *page) entries() []found {
	path := strings.TrimPrefix(p.Path, "/")
	all := []found{{Kind: "guide", Title: p.Title, Path: path, Names: p.source + " " + otherWords[p.source]}}
	words := []string{p.Description}
	kind := "section"
	if p.source == "changelog" {
		kind = "change"
	}
	source := []byte(p.Source())
	for node := converter.Parser().Parse(goldtext.NewReader(source)).FirstChild(); node != nil; node = node.NextSibling() {
		part, isHeading := node.(*ast.Heading)
		if !isHeading {
			words = append(words, plainText(node, source))
			continue
		}
		all[len(all)-1].Text, words = terms(words...), nil
		if part.Level > 1 {
			id, _ := part.AttributeString("id")
			anchor, _ := id.([]byte)
			title := numbered.ReplaceAllString(plainText(part, source), "")
			all = append(all, found{Kind: kind, Title: title, Path: path + "#" + string(anchor), Where: p.Title})
		}
	}
	all[len(all)-1].Text = terms(words...)
	return all
}

// numbered is the number of a step in a heading.
var numbered = regexp.MustCompile(`^\d+\. `)

func (s *Site) operationEntries() []found {
	var all []found
	for _, t := range s.reference.Tags {
		all = append(all, found{Kind: "tag", Title: t.Title, Path: t.Path(), Names: otherWords[t.Name], Text: terms(t.Description)})
	}
	for _, o := range s.reference.Operations {
		all = append(all, found{
			Kind: "operation", Title: o.Summary, Path: s.pathOf(o), Where: o.Path, Method: o.Method, Names: o.ID + " " + o.Method, Text: terms(o.Description),
		})
	}
	return all
}

func (s *Site) pathOf(o *Operation) string { return s.reference.tagOf[o].Path() + "#" + o.ID }

func modelPath(name string) string { return "docs/reference/models#model-" + name }

func (s *Site) eventEntries() []found {
	var all []found
	for _, t := range s.reference.Tags {
		for _, e := range t.EventTypes() {
			all = append(all, found{Kind: "event", Title: e.Name, Path: eventTypes + e.Name, Text: terms(e.Text)})
		}
	}
	return all
}

func (s *Site) errorEntries() []found {
	var all []found
	for _, p := range s.Problems {
		status := strconv.Itoa(p.Status) + " " + http.StatusText(p.Status)
		all = append(all, found{Kind: "error", Title: p.Code, Path: "docs/errors#" + p.ID(), Where: status, Names: status, Text: terms(p.Meaning, p.Remedy)})
	}
	return all
}

// headerEntries returns the headers of requests and responses, each once.
func (s *Site) headerEntries() []found {
	index := entries{}
	for _, o := range s.reference.Operations {
		for _, p := range o.Parameters {
			if p.In == "header" {
				index.add(found{Kind: "header", Title: p.Name, Path: s.pathOf(o), Where: "Header of " + o.Summary, Text: p.Description}, p.Name)
			}
		}
		for _, r := range o.ResponseList {
			for _, h := range r.Value.Headers {
				index.add(found{Kind: "header", Title: h.Name, Path: s.pathOf(o), Where: "Response header", Text: h.Value.Description}, h.Name)
			}
		}
	}
	for i, e := range index.all {
		if place, known := explained[e.Title]; known {
			index.all[i].Path = "docs/" + place
			index.all[i].Where = "Header"
		}
	}
	return index.finished()
}

// fieldEntries returns the parameters, and the fields of bodies and models.
func (s *Site) fieldEntries() []found {
	index := entries{}
	for _, o := range s.reference.Operations {
		for _, p := range o.Parameters {
			if p.In != "header" && !isOfHeader(p.Name) {
				index.add(found{Kind: "parameter", Title: p.Name, Path: s.pathOf(o), Where: o.Summary, Text: p.Description}, p.In+p.Name+p.Description)
			}
		}
		if body := o.Body(); body != nil {
			index.addFields(body.Schema, "", found{Kind: "field", Path: s.pathOf(o), Where: "Body of " + o.Summary})
		}
	}
	for _, m := range s.reference.Models {
		index.addFields(m.Schema, "", found{Kind: "property", Path: modelPath(m.Name), Where: m.Name})
	}
	return index.finished()
}

// isOfHeader reports whether a parameter has the name of a header that a guide explains. The reader
// wants the guide.
func isOfHeader(parameter string) bool {
	for header := range explained {
		if strings.EqualFold(strings.ReplaceAll(header, "-", ""), parameter) {
			return true
		}
	}
	return false
}

// entries collects entries that are alike.
type entries struct {
	all  []found
	seen map[string]bool
}

// add adds an entry if its key is new.
func (e *entries) add(one found, key string) {
	if e.seen == nil {
		e.seen = map[string]bool{}
	}
	if !e.seen[key] {
		e.seen[key] = true
		e.all = append(e.all, one)
	}
}

// addFields adds the fields of an object, and the fields of objects in them.
func (e *entries) addFields(schema *Schema, prefix string, one found) {
	for _, f := range schema.Element().Fields() {
		one.Title, one.Text = prefix+f.Name, f.Schema.Description
		e.add(one, "field"+one.Title+one.Text)
		if !f.Schema.Element().IsModel() {
			e.addFields(f.Schema, one.Title+".", one)
		}
	}
}

func (e *entries) finished() []found {
	for i, one := range e.all {
		e.all[i].Text = terms(one.Text)
	}
	return e.all
}

var (
	markup = regexp.MustCompile(`\]\([^)]*\)`)
	term   = regexp.MustCompile(`[\p{L}\d]+(?:[-_.][\p{L}\d]+)*`)
)

// commonWords say nothing about a text.
var commonWords = strings.Fields("a all also an and any are as at be before but by can do does each every for from has have if in into is it " +
	"its more no not of on one only or other so than that the their them then there these they this to until was when which with without you your")

// terms returns the words of texts in Markdown in lower case, each once.
func terms(texts ...string) string {
	var words []string
	for _, text := range texts {
		for _, word := range term.FindAllString(strings.ToLower(markup.ReplaceAllString(text, "]")), -1) {
			if !slices.Contains(commonWords, word) {
				words = append(words, word)
			}
		}
	}
	slices.Sort(words)
	return strings.Join(slices.Compact(words), " ")
}

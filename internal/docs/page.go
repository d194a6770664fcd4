package docs

import (
	"bytes"
	"fmt"
	"html/template"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// page has the values of a page template.
type page struct {
	*Site

	Path, Title, Description string
	Wide                     bool // two columns
	Crumbs                   []Link
	Previous, Next           *Link
	Tag                      *Tag
	Content                  template.HTML
	Headings                 []Heading
	Markdown                 string // path of the page as Markdown, relative to Root

	template string
	source   string // of a page that is written in Markdown
	inNav    bool
}

// Link is a link to a page. Its path is relative to the server.
type Link struct {
	Path, Title string
	Current     bool
	Parts       []Part
}

// Part is a part of the current page.
type Part struct {
	ID, Text, Method string
	Deprecated       bool
}

// NavGroup is a heading of the sidebar and its links.
type NavGroup struct {
	Title string
	Links []Link
}

// guides are the pages written in Markdown, in the order of the sidebar.
var guides = []string{
	"quickstart", "authentication", "requests", "lists", "retries", "concurrency", "limits", "stock", "events", "webhooks",
	"sandboxes", "faults",
}

// pages returns all pages in the order of the sidebar.
func (s *Site) pages() []*page {
	var all []*page
	all = append(all, &page{Path: HomePath, Title: "Petstore API", template: "home"})
	for _, name := range guides {
		all = append(all, &page{Path: HomePath + "/" + name, source: name, template: "guide", inNav: true})
	}
	for _, tag := range s.reference.Tags {
		all = append(all, &page{Path: "/" + tag.Path(), Title: tag.Title, Tag: tag, Wide: true, template: "tag", Description: tag.Description, inNav: true})
	}
	all = append(all,
		&page{Path: HomePath + "/reference/models", Title: "Models", Wide: true, template: "models", Description: "The objects in requests and responses.", inNav: true},
		&page{Path: ErrorsPath, source: "errors", template: "errors", inNav: true},
		&page{Path: HomePath + "/reference/all", Title: "The whole reference", Wide: true, template: "all", Description: "All operations and models on one page."},
	)
	for _, p := range all {
		p.Site = s
		if p.source != "" {
			p.Title, p.Description = heading(p.text())
		}
	}
	s.link(all)
	return all
}

// link gives each page in the sidebar its neighbours.
func (s *Site) link(all []*page) {
	var previous *page
	for _, p := range all {
		if !p.inNav {
			continue
		}
		if previous != nil {
			p.Previous, previous.Next = previous.link(), p.link()
		}
		previous = p
	}
}

func (p *page) link() *Link { return &Link{Path: strings.TrimPrefix(p.Path, "/"), Title: p.Title} }

// text returns the source of a page in Markdown.
func (p *page) text() string {
	text, err := pageFiles.ReadFile("pages/" + p.source + ".md")
	if err != nil {
		panic(err) // embedded
	}
	return string(text)
}

// heading returns the title of a source, and the description in the comment above it.
func heading(source string) (title, description string) {
	description, source, _ = strings.Cut(strings.TrimPrefix(source, "<!-- "), " -->\n\n# ")
	title, _, _ = strings.Cut(source, "\n")
	return title, description
}

// Root returns the relative URL of the server.
func (p *page) Root() string {
	if depth := strings.Count(p.Path, "/") - 1; depth > 0 {
		return strings.Repeat("../", depth)
	}
	return "./"
}

// Assets returns the relative URL of the assets.
func (p *page) Assets() string { return p.Root() + "docs/" + p.assets.dir + "/" }

// Modules lists the modules that page.js imports.
func (p *page) Modules() []string {
	return []string{"clipboard.js", "code.js", "highlight.js", "settings.js"}
}

// Version returns the version of the API.
func (p *page) Version() string { return p.reference.Version }

// Reference returns the spec for readers.
func (p *page) Reference() *Reference { return p.reference }

// Nav returns the sidebar, with the parts of this page.
func (p *page) Nav() []NavGroup {
	guide := NavGroup{Title: "Guides"}
	for _, name := range guides {
		text, _ := pageFiles.ReadFile("pages/" + name + ".md")
		title, _ := heading(string(text))
		guide.Links = append(guide.Links, p.navLink(HomePath+"/"+name, title))
	}
	nav := []NavGroup{guide}
	for _, group := range p.reference.Groups {
		links := NavGroup{Title: group.Title}
		for _, tag := range group.Tags {
			links.Links = append(links.Links, p.navLink("/"+tag.Path(), tag.Title))
		}
		if len(group.Tags) == 1 && group.Tags[0].Title == group.Title && len(nav) > 1 && nav[len(nav)-1].Title == "More" {
			nav[len(nav)-1].Links = append(nav[len(nav)-1].Links, links.Links...)
			continue
		} else if len(group.Tags) == 1 && group.Tags[0].Title == group.Title {
			links.Title = "More"
		}
		nav = append(nav, links)
	}
	return append(nav, NavGroup{Title: "Appendix", Links: []Link{
		p.navLink(HomePath+"/reference/models", "Models"),
		p.navLink(ErrorsPath, "Errors"),
	}})
}

func (p *page) navLink(path, title string) Link {
	link := Link{Path: strings.TrimPrefix(path, "/"), Title: title, Current: path == p.Path}
	if !link.Current {
		return link
	}
	for _, h := range p.Headings {
		if h.Level == 2 {
			link.Parts = append(link.Parts, Part{ID: h.ID, Text: h.Text})
		}
	}
	if p.Tag != nil {
		for _, o := range p.Tag.Operations {
			link.Parts = append(link.Parts, Part{ID: o.ID, Text: o.Summary, Method: o.Method, Deprecated: o.Deprecated})
		}
	}
	return link
}

// render returns the HTML. It panics on errors, which only a bug can cause: tests render every page.
func (p *page) render() []byte {
	if p.source != "" {
		content, headings, err := toHTML(p.text(), p.Root(), "docs/")
		if err != nil {
			panic(err)
		}
		p.Content, p.Headings = content, headings
	}
	var text bytes.Buffer
	read := template.Must(parsedTemplates().Clone())
	template.Must(read.ParseFS(templateFiles, "templates/"+p.template+".html"))
	err := read.Funcs(p.functions()).ExecuteTemplate(&text, "layout.html", p)
	if err != nil {
		panic(err)
	}
	return text.Bytes()
}

var parsedTemplates = sync.OnceValue(func() *template.Template {
	return template.Must(template.New("").Funcs((&page{}).functions()).
		ParseFS(templateFiles, "templates/layout.html", "templates/sidebar.html", "templates/operation.html"))
})

// functions are the functions of the templates. Some depend on the page.
func (p *page) functions() template.FuncMap {
	markdown := func(source string) (template.HTML, error) {
		html, _, err := toHTML(source, p.Root(), "")
		return html, err
	}
	return template.FuncMap{
		"markdown": markdown,
		"inline": func(source string) (template.HTML, error) {
			html, err := markdown(source)
			return template.HTML(strings.TrimSuffix(strings.TrimPrefix(strings.TrimSpace(string(html)), "<p>"), "</p>")), err //nolint:gosec // our own texts
		},
		"class": statusClass,
		"lower": strings.ToLower,
		"field": func(name string, required bool, schema *Schema) Field { return Field{name, required, schema} },
		"longDate": func(date string) (string, error) {
			day, err := time.Parse(time.DateOnly, date)
			return day.Format("2 January 2006"), err
		},
		"errorLink": func(code string) string { return p.Root() + "docs/errors#" + code },
		"modelLink": p.modelLink,
	}
}

// modelLink returns the URL of a model, on this page if it has the model.
func (p *page) modelLink(name string) string {
	here := func(models []Model) bool {
		return slices.ContainsFunc(models, func(m Model) bool { return m.Name == name })
	}
	if p.Tag != nil && here(p.Tag.Models) || p.template == "models" || p.template == "all" {
		return "#model-" + name
	}
	return p.Root() + path.Join("docs/reference/models") + "#model-" + name
}

// identifiedProblem is a problem with the id of its part of the page.
type identifiedProblem struct {
	Problem

	ID string
}

// Problems returns the errors. The id of each is its code, or its code and status if an
// earlier one has the same code.
func (p *page) Problems() []identifiedProblem {
	all := make([]identifiedProblem, len(p.Site.Problems))
	taken := map[string]bool{}
	for i, problem := range p.Site.Problems {
		id := problem.Code
		if taken[id] {
			id = fmt.Sprintf("%s_%d", problem.Code, problem.Status)
		}
		taken[id] = true
		all[i] = identifiedProblem{problem, id}
	}
	return all
}

// statusClass returns the class of a status, such as 4xx.
func statusClass(status any) string {
	if number, isNumber := status.(int); isNumber {
		status = strconv.Itoa(number)
	}
	return fmt.Sprint(status)[:1] + "xx"
}

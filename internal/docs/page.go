package docs

import (
	"bytes"
	"cmp"
	"html/template"
	"path"
	"regexp"
	"slices"
	"strings"
)

// page has the values of a page template.
type page struct {
	*Site

	Path, Title, Description string
	Wide                     bool // two columns
	Tag                      *Tag
	Previous, Next           *Link
	Content                  template.HTML
	Headings                 []Heading

	template string
	source   string // the file of a page that is written in Markdown
	hidden   bool   // from the sidebar
}

// guides are written in Markdown, in the order of the sidebar.
var guides = []string{
	"quickstart", "authentication", "requests", "lists", "retries", "idempotency", "concurrency", "limits", "stock", "events",
	"webhooks", "sandboxes", "record", "console", "faults", "report", "transfer",
}

// tags are the tags of the spec with operations. TestReference and TestFiles fail for others.
var tags = []string{"pets", "categories", "store", "inventory", "messages", "events", "webhooks", "accounts", "sandboxes", "clients", "meta"}

// newPages returns all pages in the order of the sidebar.
func (s *Site) newPages(tags []*Tag) []*page {
	all := []*page{{Path: HomePath, source: "home", template: "home", hidden: true}}
	for _, name := range guides {
		all = append(all, &page{Path: HomePath + "/" + name, source: name, template: "guide"})
	}
	for _, tag := range tags {
		all = append(all, &page{Path: "/" + tag.Path(), Title: tag.Title, Description: tag.Description, Tag: tag, Wide: true, template: "tag"})
	}
	all = append(all,
		&page{Path: HomePath + "/reference/models", Title: "Models", Description: "The objects in bodies of requests and responses.", Wide: true, template: "models"},
		&page{Path: ErrorsPath, source: "errors", template: "errors"},
		&page{Path: HomePath + "/changelog", source: "changelog", template: "guide", Description: "The changes of each version."},
		&page{Path: HomePath + "/reference/all", Title: "The whole reference", Description: "All operations and models on one page, for printing.", Wide: true, template: "all"},
		&page{Path: NotFoundPath, source: "404", template: "guide", hidden: true},
		&page{Path: ConsolePath, Title: "Console", Description: "Requests, events and webhooks of a store, as they happen.", Wide: true, template: "console", hidden: true},
	)
	var previous *page
	for _, p := range all {
		p.Site = s
		if p.source != "" {
			title, description := heading(p.file())
			p.Title, p.Description = title, cmp.Or(description, p.Description)
		}
		if p.hidden {
			continue
		}
		if previous != nil {
			p.Previous, previous.Next = previous.link(), p.link()
		}
		previous = p
	}
	return all
}

// file returns the file of a page that is written in Markdown.
func (p *page) file() string {
	return string(must(pageFiles.ReadFile("pages/" + p.source + ".md")))
}

// heading returns the title of a file, and the comment above it.
func heading(file string) (title, description string) {
	description, rest, found := strings.Cut(file, " -->\n\n")
	if !found {
		description, rest = "", file
	}
	title, _, _ = strings.Cut(strings.TrimPrefix(rest, "# "), "\n")
	return title, strings.TrimPrefix(description, "<!-- ")
}

// Source returns the Markdown of a page without the comment above it.
func (p *page) Source() string {
	_, rest, found := strings.Cut(p.file(), " -->\n\n")
	if !found {
		// The changelog, whose relative links lead to files of the repository.
		return repositoryLink.ReplaceAllString(p.file(), "$1")
	}
	return rest
}

var repositoryLink = regexp.MustCompile(`\[([^\]]*)\]\(docs/[^)]*\)`)

// Root returns the relative URL of the server.
func (p *page) Root() string {
	return rootOf(p.Path)
}

func rootOf(path string) string {
	if depth := strings.Count(path, "/") - 1; depth > 0 {
		return strings.Repeat("../", depth)
	}
	return "./"
}

// Relocate returns the page of [NotFoundPath] with the links that it needs at another path.
func Relocate(page []byte, path string) []byte {
	return bytes.ReplaceAll(page, []byte(`="`+rootOf(NotFoundPath)), []byte(`="`+rootOf(path)))
}

// Assets returns the relative URL of the assets.
func (p *page) Assets() string { return p.Root() + "docs/" + p.assets.dir + "/" }

// Script returns the name of the module that the page runs.
func (p *page) Script() string {
	if p.template == "console" {
		return "console.js"
	}
	return "page.js"
}

// Modules lists the modules that the script imports, except those of the docs in the console.
func (p *page) Modules() []string {
	var all []string
	for name := range p.assets.files {
		ofConsole := strings.HasPrefix(name, "console")
		if path.Ext(name) == ".js" && ofConsole == (p.template == "console") && name != p.Script() && name != "early.js" {
			all = append(all, name)
		}
	}
	slices.Sort(all)
	return all
}

// Version returns the version of the API.
func (p *page) Version() string { return p.reference.Version }

// Summary returns the first paragraph about the API.
func (p *page) Summary() string {
	first, _, _ := strings.Cut(p.reference.Description, "\n\n")
	return strings.Join(strings.Fields(first), " ")
}

// Reference returns the spec for readers.
func (p *page) Reference() *Reference { return p.reference }

// Markdown returns the path of the page as Markdown; "": it is an application.
func (p *page) Markdown() string {
	switch p.Path {
	case HomePath:
		return HomePath + "/index.md"
	case ConsolePath:
		return ""
	default:
		return p.Path + ".md"
	}
}

// html returns the page as HTML, and text as Markdown. They panic on errors, which only a bug
// can cause: tests render every page.
func (p *page) html() []byte {
	if p.source != "" {
		p.Content, p.Headings = toHTML(p.Source(), p.Root(), "docs/")
	}
	files := []string{"templates/layout.html", "templates/sidebar.html", "templates/operation.html", "templates/" + p.template + ".html"}
	read := template.Must(template.New("").Funcs(p.functions()).ParseFS(templateFiles, files...))
	var text bytes.Buffer
	if err := read.ExecuteTemplate(&text, "layout.html", p); err != nil {
		panic(err)
	}
	return text.Bytes()
}

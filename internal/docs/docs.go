// Package docs renders the reference page of the API, the guides and the list of errors.
// The program contains all their files, and the pages load nothing from other addresses.
//
// The reference page is Swagger UI, unchanged from its Go module, with our own plugin and
// style. Swagger UI builds and sends requests. The plugin replaces its layout, which fails
// rules of axe-core and shows no groups, sunset dates or code samples. Both are plain files
// without a build step.
package docs

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"html/template"
	"io/fs"
	"path"
	"strconv"
	"strings"

	"github.com/swaggest/swgui/v5/static"
)

// Paths of the pages.
const (
	ReferencePath = "/docs"
	ErrorsPath    = "/docs/errors"
)

// guides are the other pages, in the order of the navigation.
var guides = []Guide{
	{"quickstart", "Quickstart"},
	{"authentication", "Authentication"},
	{"requests", "Requests and responses"},
	{"lists", "Lists"},
	{"retries", "Errors and retries"},
	{"concurrency", "Concurrent changes"},
	{"limits", "Limits"},
	{"stock", "Stock and states"},
	{"events", "Follow events"},
	{"webhooks", "Receive webhooks"},
	{"sandboxes", "Test your client in a sandbox"},
	{"faults", "Faults on demand"},
}

// Guide is a page below [ReferencePath].
type Guide struct{ Name, Title string }

//go:embed assets
var assetFiles embed.FS

//go:embed pages
var pageFiles embed.FS

// The script of Swagger UI: its name for browsers, and its file in the module.
const (
	swaggerUI     = "swagger-ui-bundle.js"
	swaggerUIFile = swaggerUI + ".gz"
)

// Problem is an error that the API returns.
type Problem struct {
	Status  int
	Code    string
	Meaning string
	Remedy  string // how a client can fix it
}

// New returns the pages and assets for a version of the API, with a list of its
// problems. The keys are paths that begin with [ReferencePath]. The pages load the
// spec from openapi.json next to /docs, also behind a proxy that adds a prefix to
// both.
func New(version string, problems []Problem) (map[string]*File, error) {
	assets, err := readAssets()
	if err != nil {
		return nil, fmt.Errorf("docs: %w", err)
	}
	files := make(map[string]*File, len(assets.files)+len(guides)+2)
	for name, file := range assets.files {
		files[path.Join(ReferencePath, assets.dir, name)] = file
	}
	pages := []page{
		{path: ReferencePath, template: "reference.html", Title: "Reference", Root: "./"},
		{path: ErrorsPath, template: "errors.html", Title: "Errors", Root: "../"},
	}
	for _, guide := range guides {
		pages = append(pages, page{path: path.Join(ReferencePath, guide.Name), template: guide.Name + ".html", Title: guide.Title, Root: "../"})
	}
	for _, p := range pages {
		p.Guides = guides
		p.Version, p.Problems = version, identified(problems)
		p.Assets = p.Root + "docs/" + assets.dir + "/"
		p.Modules = assets.modules
		text, err := p.render()
		if err != nil {
			return nil, fmt.Errorf("docs: %w", err)
		}
		files[p.path] = newPage(text)
	}
	return files, nil
}

// page has the values of a page template.
type page struct {
	path, template string

	Title    string
	Guides   []Guide
	Version  string
	Root     string // relative URL of the folder of openapi.json
	Assets   string // relative URL of the assets
	Modules  []string
	Problems []identifiedProblem
}

// identifiedProblem is a problem with the id of its part of the page.
type identifiedProblem struct {
	Problem

	ID string
}

// identified gives each problem an id: its code, or its code and status if an earlier one
// has the same code.
func identified(problems []Problem) []identifiedProblem {
	all := make([]identifiedProblem, len(problems))
	taken := map[string]bool{}
	for i, p := range problems {
		id := p.Code
		if taken[id] {
			id = fmt.Sprintf("%s_%d", p.Code, p.Status)
		}
		taken[id] = true
		all[i] = identifiedProblem{p, id}
	}
	return all
}

func (p page) render() ([]byte, error) {
	read, err := template.New("").Funcs(template.FuncMap{"marked": marked, "class": statusClass}).
		ParseFS(pageFiles, "pages/layout.html", "pages/"+p.template)
	if err != nil {
		return nil, err
	}
	var text bytes.Buffer
	err = read.ExecuteTemplate(&text, "layout.html", p)
	return text.Bytes(), err
}

// marked formats text between backticks as code.
func marked(text string) template.HTML {
	var html strings.Builder
	for i, part := range strings.Split(text, "`") {
		if i%2 == 1 {
			part = "<code>" + template.HTMLEscapeString(part) + "</code>"
		} else {
			part = template.HTMLEscapeString(part)
		}
		html.WriteString(part)
	}
	return template.HTML(html.String()) //nolint:gosec // every part is escaped
}

// statusClass returns the class of a status, such as 4xx.
func statusClass(status int) string { return strconv.Itoa(status/100) + "xx" }

// assets are the files that the pages load. The name of their folder is a hash of
// their content. So browsers may cache them forever, and modules can import each
// other by name.
type assets struct {
	dir     string
	files   map[string]*File
	modules []string // the modules that main.js imports
}

func readAssets() (assets, error) {
	read := assets{files: map[string]*File{}}
	hash := sha256.New()
	entries, err := assetFiles.ReadDir("assets")
	if err != nil {
		return read, err
	}
	for _, entry := range entries {
		name := entry.Name()
		text, err := assetFiles.ReadFile("assets/" + name)
		if err != nil {
			return read, err
		}
		fmt.Fprintf(hash, "%s %d\n%s", name, len(text), text)
		read.files[name] = newAsset(name, text)
		if strings.HasSuffix(name, ".js") && name != "main.js" && name != "early.js" {
			read.modules = append(read.modules, name)
		}
	}
	compressed, err := fs.ReadFile(static.FS, swaggerUIFile)
	if err != nil {
		return read, err
	}
	hash.Write(compressed)
	read.files[swaggerUI] = newCompressedAsset(swaggerUI, compressed)
	read.dir = "assets/" + hex.EncodeToString(hash.Sum(nil)[:8])
	return read, nil
}

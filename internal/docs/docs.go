// Package docs is the reference page of the API, with its quickstart and its
// list of errors: every file of it is in the program, and a browser that shows
// it asks no other address.
//
// Swagger UI comes from its Go module as it is. Beside it there are our own
// pages, style and plugin, plain files that no build step touches.
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
	ReferencePath  = "/docs"
	QuickstartPath = "/docs/quickstart"
	ErrorsPath     = "/docs/errors"
)

//go:embed assets
var assetFiles embed.FS

//go:embed pages
var pageFiles embed.FS

// swaggerUI is the script of Swagger UI, as the browser knows it and as its
// module holds it.
const (
	swaggerUI     = "swagger-ui-bundle.js"
	swaggerUIFile = swaggerUI + ".gz"
)

// Problem is one error that the API answers.
type Problem struct {
	Status  int
	Code    string
	Meaning string
	Remedy  string // what a client can do about it
}

// New makes the pages for a version of the API and lists its problems; the
// files are by their paths, which all begin with ReferencePath. The pages find
// the description at openapi.json beside /docs, also behind a proxy that puts
// a prefix before both.
func New(version string, problems []Problem) (map[string]*File, error) {
	assets, err := readAssets()
	if err != nil {
		return nil, fmt.Errorf("docs: %w", err)
	}
	files := make(map[string]*File, len(assets.files)+3)
	for name, file := range assets.files {
		files[path.Join(ReferencePath, assets.dir, name)] = file
	}
	for _, p := range []page{
		{path: ReferencePath, template: "reference.html", Title: "Reference", Root: "./"},
		{path: QuickstartPath, template: "quickstart.html", Title: "Quickstart", Root: "../"},
		{path: ErrorsPath, template: "errors.html", Title: "Errors", Root: "../"},
	} {
		p.Version, p.Problems = version, problems
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

// page is what the template of a page is filled with.
type page struct {
	path, template string

	Title    string
	Version  string
	Root     string // from the page to the folder of openapi.json
	Assets   string // from the page to the assets
	Modules  []string
	Problems []Problem
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

// marked sets what stands between backticks as code.
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

// statusClass is the class of a status, such as 4xx.
func statusClass(status int) string { return strconv.Itoa(status/100) + "xx" }

// assets are what the pages load. The name of their folder is made from their
// content, so that browsers may keep them for good, and the modules among them
// find each other by name.
type assets struct {
	dir     string
	files   map[string]*File
	modules []string // the names of those that main.js imports
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

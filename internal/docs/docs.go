// Package docs renders the API reference from the spec, the guides, the list of errors and the
// changelog, as HTML and as Markdown. The program contains all their files, and the pages load
// nothing from other addresses. It also makes the Postman collection.
//
// The server renders complete pages. Plain modules, without a build step, add forms, samples
// in other languages and the search. They are also the console, which shows what happens in a
// store.
package docs

import (
	"bytes"
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"path"
	"slices"
	"sync"
)

// Paths of the pages.
const (
	HomePath     = "/docs"
	ConsolePath  = "/console"
	ErrorsPath   = "/docs/errors"
	NotFoundPath = "/docs/404"

	// CollectionPath is the path of the Postman collection.
	CollectionPath = HomePath + "/petstore.postman_collection.json"
)

//go:embed assets
var assetFiles embed.FS

//go:embed pages
var pageFiles embed.FS

//go:embed templates
var templateFiles embed.FS

// Problem is an error that the API returns.
type Problem struct {
	Status  int
	Code    string
	Meaning string
	Remedy  string // how a client can fix it

	id string // of its part of the page
}

// ID is the code, or the code and the status if an earlier problem has the same code.
func (p Problem) ID() string { return p.id }

// Site has what the pages show.
type Site struct {
	Spec     []byte // openapi.json
	Problems []Problem

	reference *Reference
	assets    assets
	pages     []*page
}

// New returns the pages and assets by path. The work is done at the first request: reading the
// spec takes 10 ms. The pages use relative links, so that they also work behind a proxy
// that adds a prefix.
func New(site Site) map[string]*File {
	site.Problems = slices.Clone(site.Problems)
	taken := map[string]bool{}
	for i, problem := range site.Problems {
		id := problem.Code
		if taken[id] {
			id = fmt.Sprintf("%s_%d", problem.Code, problem.Status)
		}
		taken[id] = true
		site.Problems[i].id = id
	}
	var described []*Tag
	for _, name := range tags {
		described = append(described, &Tag{Name: name})
	}
	paths := site.newPages(described) // without the content of the spec
	read := sync.OnceFunc(func() {
		site.reference = must(newReference(site.Spec))
		site.pages = site.newPages(site.reference.Tags)
	})
	site.assets = site.readAssets(read)
	files := map[string]*File{}
	for name, file := range site.assets.files {
		files[path.Join(HomePath, site.assets.dir, name)] = file
	}
	for _, p := range paths {
		whole := func() *page {
			read()
			return site.pages[slices.IndexFunc(site.pages, func(one *page) bool { return one.Path == p.Path })]
		}
		var markdown *File
		if p.Markdown() != "" {
			markdown = newMarkdown(func() []byte { return whole().text() })
			files[p.Markdown()] = markdown
		}
		if p.Path == HomePath { // its links lead from above the folder of its Markdown
			markdown = newMarkdown(func() []byte { return bytes.ReplaceAll(whole().text(), []byte("]("), []byte("](docs/")) })
		}
		files[p.Path] = newPage(func() []byte { return whole().html() }, markdown)
	}
	index := &page{Site: &site, Path: "/llms.txt"}
	files[index.Path] = newMarkdown(func() []byte {
		read()
		return index.execute("llms.txt")
	})
	files[catalogPath] = newCatalog()
	return files
}

// must returns the value. It panics on an error, which only a bug can cause: tests read every file.
func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

// assets are the files that the pages load. The name of their folder is a hash of those that never
// change. So browsers may cache these forever, and modules can import each other by name.
type assets struct {
	dir   string
	files map[string]*File
}

func (s *Site) readAssets(read func()) assets {
	all := assets{files: map[string]*File{}}
	hash := sha256.New()
	for _, entry := range must(assetFiles.ReadDir("assets")) {
		name := entry.Name()
		text := must(assetFiles.ReadFile("assets/" + name))
		fmt.Fprintf(hash, "%s %d\n%s", name, len(text), text)
		all.files[name] = newAsset(name, text)
	}
	for name, data := range map[string]func() []byte{"reference.json": func() []byte { return s.reference.data() }, "search.json": s.search} {
		all.files[name] = NewDownload("application/json", func() ([]byte, error) {
			read()
			return data(), nil
		})
	}
	all.dir = "assets/" + hex.EncodeToString(hash.Sum(nil)[:8])
	return all
}

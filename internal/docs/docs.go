// Package docs renders the API reference from the spec, the guides, the list of errors and the
// changelog, as HTML and as Markdown. The program contains all their files, and the pages load
// nothing from other addresses.
//
// The server renders complete pages. Plain modules, without a build step, add forms, samples
// in other languages and the search.
package docs

import (
	"crypto/sha256"
	"embed"
	"encoding/hex"
	"fmt"
	"path"
)

// Paths of the pages.
const (
	HomePath     = "/docs"
	ErrorsPath   = "/docs/errors"
	NotFoundPath = "/docs/404"
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
}

// Site has what the pages show.
type Site struct {
	Spec     []byte // openapi.json
	Problems []Problem

	reference *Reference
	assets    assets
	pages     []*page
}

// New returns the pages and assets by path. Except for the reading of the spec, the work is
// done at the first request of each page. The pages use relative links, so that they also work
// behind a proxy that adds a prefix.
func New(site Site) (map[string]*File, error) {
	var err error
	if site.reference, err = newReference(site.Spec); err != nil {
		return nil, fmt.Errorf("docs: %w", err)
	}
	site.pages = site.newPages()
	if site.assets, err = site.readAssets(); err != nil {
		return nil, fmt.Errorf("docs: %w", err)
	}
	files := map[string]*File{}
	for name, file := range site.assets.files {
		files[path.Join(HomePath, site.assets.dir, name)] = file
	}
	for _, p := range site.pages {
		markdown := newMarkdown(p.text)
		files[p.Path], files[p.Markdown()] = newPage(p.html, markdown), markdown
	}
	index := &page{Site: &site, Path: "/llms.txt"}
	files[index.Path] = newMarkdown(func() []byte { return index.execute("llms.txt") })
	files[catalogPath] = newCatalog()
	return files, nil
}

// assets are the files that the pages load. The name of their folder is a hash of what they
// are made of. So browsers may cache them forever, and modules can import each other by name.
type assets struct {
	dir   string
	files map[string]*File
}

func (s *Site) readAssets() (assets, error) {
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
		read.files[name] = newAsset(name, func() []byte { return text })
	}
	hash.Write(s.Spec)
	for _, p := range s.pages {
		if p.source != "" {
			hash.Write([]byte(p.file()))
		}
	}
	fmt.Fprint(hash, s.Problems)
	read.files["reference.json"] = newAsset("reference.json", s.reference.data)
	read.files["search.json"] = newAsset("search.json", s.search)
	read.dir = "assets/" + hex.EncodeToString(hash.Sum(nil)[:8])
	return read, nil
}

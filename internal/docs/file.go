package docs

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/base64"
	"net/http"
	"path"
	"sync"
)

// policy allows a page to load files only from its own server.
const policy = "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; " +
	"base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// File is a page or an asset. It is safe for concurrent use.
type File struct {
	ContentType string
	// Fields are additional header fields for both codings.
	Fields http.Header
	// Markdown is the same page as Markdown, with links from its path; nil: there is none.
	Markdown *File

	// Plain returns the file unencoded, and Compressed as gzip. Both are computed at their first use,
	// so that they do not delay the start of the server.
	Plain, Compressed func() Coded
}

// Coded is a file in one coding.
type Coded struct {
	Text []byte
	ETag string // a strong ETag: it differs for different bytes
}

func newPage(text func() []byte, markdown *File) *File {
	page := newFile(text, "text/html; charset=utf-8", http.Header{
		"Cache-Control":           {"public, no-cache"},
		"Content-Security-Policy": {policy},
		"Referrer-Policy":         {"no-referrer"},
	})
	page.Markdown = markdown
	return page
}

func newMarkdown(text func() []byte) *File {
	return newFile(text, "text/markdown; charset=utf-8", http.Header{"Cache-Control": {"public, no-cache"}})
}

// NewDownload returns a file that is made at its first use. Only a bug can cause an error, so the
// file then panics.
func NewDownload(contentType string, read func() ([]byte, error)) *File {
	return newFile(func() []byte { return must(read()) }, contentType, http.Header{"Cache-Control": {"public, no-cache"}})
}

const catalogPath = "/.well-known/api-catalog"

// newCatalog returns the catalog of RFC 9727, which leads programs to the spec and the docs.
func newCatalog() *File {
	const catalog = `{"linkset":[{"anchor":"../","service-desc":[{"href":"../openapi.json","type":"application/json"},{"href":"../openapi-3.1.json","type":"application/json"}],` +
		`"service-doc":[{"href":"../docs","type":"text/html"},{"href":"../llms.txt","type":"text/markdown"}],"status":[{"href":"../readyz"}]}]}`
	return newFile(func() []byte { return []byte(catalog) }, `application/linkset+json; profile="https://www.rfc-editor.org/info/rfc9727"`, http.Header{
		"Cache-Control": {"public, no-cache"},
		"Link":          {`<api-catalog>; rel="api-catalog"`},
	})
}

func newAsset(name string, text []byte) *File {
	types := map[string]string{".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}
	return newFile(func() []byte { return text }, types[path.Ext(name)], http.Header{"Cache-Control": {"public, max-age=31536000, immutable"}})
}

func newFile(text func() []byte, contentType string, fields http.Header) *File {
	text = sync.OnceValue(text)
	return &File{
		ContentType: contentType,
		Fields:      fields,
		Plain:       sync.OnceValue(func() Coded { return tagged(text()) }),
		Compressed:  sync.OnceValue(func() Coded { return tagged(compress(text())) }),
	}
}

func tagged(text []byte) Coded {
	sum := sha256.Sum256(text)
	return Coded{Text: text, ETag: `"` + base64.RawURLEncoding.EncodeToString(sum[:16]) + `"`}
}

// compress panics on errors, which only a bug can cause: it works in memory.
func compress(text []byte) []byte {
	var compressed bytes.Buffer
	w := must(gzip.NewWriterLevel(&compressed, gzip.BestCompression))
	must(w.Write(text))
	must(struct{}{}, w.Close())
	return compressed.Bytes()
}

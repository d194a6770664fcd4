package docs

import (
	"bytes"
	"compress/gzip"
	"crypto/sha256"
	"encoding/base64"
	"io"
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

	plain, compressed func() Coded
}

// Coded is a file in one coding.
type Coded struct {
	Text []byte
	ETag string // a strong ETag: it differs for different bytes
}

// Plain returns the file unencoded. Both codings are computed at their first use,
// so that they do not delay the start of the server.
func (f *File) Plain() Coded { return f.plain() }

// Compressed returns the file as gzip.
func (f *File) Compressed() Coded { return f.compressed() }

func newPage(text []byte) *File {
	return newFile(text, "text/html; charset=utf-8", http.Header{
		"Cache-Control":           {"public, no-cache"},
		"Content-Security-Policy": {policy},
		"Referrer-Policy":         {"no-referrer"},
	})
}

func newAsset(name string, text []byte) *File {
	types := map[string]string{".js": "text/javascript; charset=utf-8", ".css": "text/css; charset=utf-8", ".svg": "image/svg+xml"}
	return newFile(text, types[path.Ext(name)], http.Header{"Cache-Control": {"public, max-age=31536000, immutable"}})
}

// newCompressedAsset returns an asset whose content is already compressed.
func newCompressedAsset(name string, compressed []byte) *File {
	f := newAsset(name, nil)
	f.plain = sync.OnceValue(func() Coded { return tagged(decompress(compressed)) })
	f.compressed = sync.OnceValue(func() Coded { return tagged(compressed) })
	return f
}

func newFile(text []byte, contentType string, fields http.Header) *File {
	return &File{
		ContentType: contentType,
		Fields:      fields,
		plain:       sync.OnceValue(func() Coded { return tagged(text) }),
		compressed:  sync.OnceValue(func() Coded { return tagged(compress(text)) }),
	}
}

func tagged(text []byte) Coded {
	sum := sha256.Sum256(text)
	return Coded{Text: text, ETag: `"` + base64.RawURLEncoding.EncodeToString(sum[:16]) + `"`}
}

// compress and decompress panic on errors, which only a bug can cause: they work in
// memory on embedded files, and tests read every file in both codings.
func compress(text []byte) []byte {
	var compressed bytes.Buffer
	w, err := gzip.NewWriterLevel(&compressed, gzip.BestCompression)
	if err == nil {
		_, err = w.Write(text)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		panic(err)
	}
	return compressed.Bytes()
}

func decompress(compressed []byte) []byte {
	r, err := gzip.NewReader(bytes.NewReader(compressed))
	if err != nil {
		panic(err)
	}
	text, err := io.ReadAll(r)
	if err != nil {
		panic(err)
	}
	return text
}

package gate

import (
	"compress/gzip"
	"io"
	"maps"
	"net/http"
	"strings"
	"sync"

	"github.com/gin-gonic/gin"

	"petstore/internal/docs"
	"petstore/internal/httpjson"
)

// document is a static text, plain and compressed. Each variant has its own strong
// entity tag, because the bytes differ (RFC 9110, section 8.8.3). Each is made at its first
// use, because compressing the spec takes 0.1 s.
type document struct {
	contentType   string
	plain, zipped func() (variant, error)
}

// variant is a text in one content coding, with its entity tag and headers.
type variant struct {
	text   []byte
	etag   string
	fields http.Header
}

// fixed returns a function that reads a text.
func fixed(text []byte) func() ([]byte, error) { return func() ([]byte, error) { return text, nil } }

// newDocument returns a document of at least [compressFrom] bytes.
func newDocument(contentType string, read func() ([]byte, error)) document {
	newVariant := func(text []byte, etag string) variant {
		return variant{text, etag, http.Header{"Cache-Control": {"public, no-cache"}, "Vary": {varyOfCoded}}}
	}
	plain := sync.OnceValues(func() (variant, error) {
		text, err := read()
		return newVariant(text, httpjson.ETag(text)), err
	})
	zipped := sync.OnceValues(func() (variant, error) {
		unzipped, err := plain()
		writer, _ := gzip.NewWriterLevel(io.Discard, gzip.BestCompression) // fails only for an unknown level
		return newVariant(compressWith(writer, unzipped.text), strings.TrimSuffix(unzipped.etag, `"`)+`-gzip"`), err
	})
	return document{contentType, plain, zipped}
}

// write sends the document, or 304 if the client already has it.
func (d document) write(c *gin.Context) error {
	form, zip := d.plain, httpjson.PrefersGzip(c.Request.Header)
	if zip {
		form = d.zipped
	}
	chosen, err := form()
	if err != nil {
		return err
	}
	return chosen.write(c, d.contentType, zip)
}

// write sends the text, or 304 if the client already has it. The error is
// [httpjson.ErrPreconditionFailed].
func (v variant) write(c *gin.Context, contentType string, zip bool) error {
	unmodified, err := httpjson.CheckPreconditions(c.Request, v.etag)
	if err != nil {
		return err
	}
	header := c.Writer.Header()
	maps.Copy(header, v.fields)
	header.Set("ETag", v.etag)
	if unmodified {
		c.Status(http.StatusNotModified)
		return nil
	}
	if zip {
		header.Set("Content-Encoding", "gzip")
	}
	limitDrain(c, len(v.text))
	httpjson.Send(c.Writer, http.StatusOK, contentType, v.text)
	return nil
}

// writeFile sends a file of the docs, or 304 if the client already has it. A page has two
// formats, of which Accept chooses.
func writeFile(c *gin.Context, file *docs.File) error {
	vary := varyOfCoded
	if file.Markdown != nil {
		vary += ", Accept"
		markdown, html := httpjson.QualityOf(c.Request.Header, "text/markdown"), httpjson.QualityOf(c.Request.Header, "text/html")
		if markdown.Specificity == exactly && markdown.Weight >= html.Weight && markdown.Weight > 0 {
			file = file.Markdown
		}
	}
	form, zip := file.Plain, httpjson.PrefersGzip(c.Request.Header)
	if zip {
		form = file.Compressed
	}
	chosen := form()
	c.Header("Vary", vary)
	return variant{chosen.Text, chosen.ETag, file.Fields}.write(c, file.ContentType, zip)
}

// sendNotFound sends a page to a browser. Other clients get [ErrRouteNotFound].
func (g *Gate) sendNotFound(c *gin.Context) error {
	header, method := c.Request.Header, c.Request.Method
	html, page := httpjson.QualityOf(header, "text/html"), g.pages[docs.NotFoundPath]
	if method != http.MethodGet && method != http.MethodHead || page == nil || checkPath(c) != nil ||
		html.Specificity != exactly || html.Weight <= httpjson.QualityOf(header, httpjson.ContentType).Weight {
		return ErrRouteNotFound
	}
	maps.Copy(c.Writer.Header(), page.Fields)
	c.Header("Cache-Control", "no-store")
	c.Header("Vary", varyOfAll+", Accept")
	limitDrain(c, 0)
	httpjson.Send(c.Writer, http.StatusNotFound, page.ContentType, docs.Relocate(page.Plain().Text, c.Request.URL.EscapedPath()))
	return nil
}

// exactly is the specificity of a media type that Accept names.
const exactly = 3

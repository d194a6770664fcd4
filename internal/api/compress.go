package api

import (
	"bytes"
	"compress/gzip"
	"io"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gin-gonic/gin"

	"petstore/internal/httpjson"
)

// compressFrom is the minimum size in bytes of a compressed list or document.
const compressFrom = 1 << 10

// compressor compresses lists at the fastest level (decision 9). Writers are reused,
// because a new one allocates 1.2 MB. There are few, because none is held while a client
// reads.
type compressor struct{ writers sync.Pool }

func newCompressor() *compressor {
	return &compressor{sync.Pool{New: func() any {
		writer, _ := gzip.NewWriterLevel(io.Discard, gzip.BestSpeed) // fails only for an unknown level
		return writer
	}}}
}

func (z *compressor) compress(text []byte) []byte {
	writer := z.writers.Get().(*gzip.Writer) //nolint:forcetypeassert // the pool holds nothing else
	defer z.writers.Put(writer)
	return compressWith(writer, text)
}

// compressWith compresses in memory, where writing cannot fail.
func compressWith(writer *gzip.Writer, text []byte) []byte {
	var compressed bytes.Buffer
	writer.Reset(&compressed)
	_, _ = writer.Write(text)
	_ = writer.Close()
	return compressed.Bytes()
}

// A client must read a page of more than drainFrom bytes within drainPause plus a second
// for each minDrainBytesSec of it. Smaller pages fit into the buffers of the kernel.
const (
	drainFrom        = 64 << 10
	drainPause       = 2 * time.Second
	minDrainBytesSec = 64 << 10
)

// drainTime returns the time within which a client must read a page of this size in bytes.
func drainTime(size int64) time.Duration {
	return drainPause + time.Duration(size)*time.Second/minDrainBytesSec
}

// limitDrain limits the time in which a client without a key must read a response of this
// size in bytes.
func limitDrain(c *gin.Context, size int) {
	if limit := writeTimeout(c.Request.Context()); limit > 0 {
		setWriteDeadline(c, min(limit, drainTime(int64(size))))
	}
}

// writeList sends a page of a list. It sets headers only after the last possible
// error, so that an error response has none of them.
func (s *Server) writeList(c *gin.Context, page encodedPage, counted bool) error {
	unmodified, err := httpjson.CheckPreconditions(c.Request, httpjson.NoTag)
	if err != nil {
		return err
	}
	if unmodified {
		header := c.Writer.Header()
		header.Set("Cache-Control", "private, no-store")
		header.Set("Vary", varyOf(c))
		c.Status(http.StatusNotModified)
		return nil
	}
	encoded := page.items
	zip := len(encoded) >= compressFrom && httpjson.PrefersGzip(c.Request.Header)
	if zip {
		encoded = s.compressor.compress(encoded)
	}
	payer, size := caller(c).Payer(), int64(len(encoded))
	if err := s.limits.pageBytes.Take(c.Request.Context(), payer, size); err != nil {
		return err
	}
	defer s.limits.pageBytes.Give(payer, size)
	if size > drainFrom && writeTimeout(c.Request.Context()) > 0 {
		setWriteDeadline(c, drainTime(size))
	}
	header := c.Writer.Header()
	header.Add("Link", page.links)
	header.Set("Cache-Control", "private, no-store")
	header.Set("Vary", varyOf(c))
	if zip {
		header.Set("Content-Encoding", "gzip")
	}
	if counted {
		header.Set("X-Total-Count", strconv.FormatInt(page.total, 10))
		applyPreference(header, "count=exact")
	}
	httpjson.Send(c.Writer, http.StatusOK, httpjson.ContentType, encoded)
	return nil
}

// varyOf returns the Vary header of a page of a list.
func varyOf(c *gin.Context) string {
	if c.FullPath() == eventsPath {
		return varyOfEvents
	}
	return varyOfCoded
}

// document is a static text, plain and compressed. Each variant has its own strong
// entity tag, because the bytes differ (RFC 9110, section 8.8.3).
type document struct {
	contentType string
	plain       variant
	zipped      func() variant // compresses at the first call, which takes 0.1 s for the spec
}

// variant is a text in one content coding, with its entity tag and headers.
type variant struct {
	text   []byte
	etag   string
	fields http.Header
}

// newDocument returns a document of at least [compressFrom] bytes.
func newDocument(contentType string, text []byte) document {
	hash := strings.Trim(httpjson.ETag(text), `"`)
	newVariant := func(text []byte, etag string) variant {
		return variant{text, etag, http.Header{"Cache-Control": {"public, no-cache"}, "Vary": {varyOfCoded}}}
	}
	zipped := sync.OnceValue(func() variant {
		writer, _ := gzip.NewWriterLevel(io.Discard, gzip.BestCompression) // fails only for an unknown level
		return newVariant(compressWith(writer, text), `"`+hash+`-gzip"`)
	})
	return document{contentType, newVariant(text, `"`+hash+`"`), zipped}
}

// write sends the document, or 304 if the client already has it.
func (d document) write(c *gin.Context) error {
	chosen, zip := d.plain, httpjson.PrefersGzip(c.Request.Header)
	if zip {
		chosen = d.zipped()
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

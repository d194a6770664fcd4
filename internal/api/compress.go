package api

import (
	"bytes"
	"io"
	"maps"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/klauspost/compress/gzip"
)

// compressFrom is the size in bytes from which a list or a document is sent compressed.
const compressFrom = 1 << 10

// compressor compresses lists, at the fastest level: the others take up to twice
// the time and make a sixth less at most. Writers are used again, for a new one
// takes 0.8 MB, and none is held while a client reads, so they stay few.
type compressor struct{ writers sync.Pool }

func newCompressor() *compressor {
	return &compressor{sync.Pool{New: func() any {
		writer, _ := gzip.NewWriterLevel(io.Discard, gzip.BestSpeed) // fails for an unknown level alone
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

// prefersGzip reads Accept-Encoding (RFC 9110, 12.5.3): gzip must be named, or
// meant by "*", with a weight above 0 and not below that of identity. What
// cannot be read asks for nothing.
func prefersGzip(fields []string) bool {
	const unnamed = -1
	var forGzip, forIdentity, forOthers float64 = unnamed, unnamed, unnamed
	for _, field := range fields {
		for one := range strings.SplitSeq(field, ",") {
			coding, parameter, weighted := strings.Cut(one, ";")
			weight := 1.0
			if weighted {
				weight = weightOf(parameter)
			}
			switch strings.ToLower(strings.TrimSpace(coding)) {
			case "gzip", "x-gzip":
				forGzip = weight
			case "identity":
				forIdentity = weight
			case "*":
				forOthers = weight
			}
		}
	}
	if forGzip == unnamed {
		forGzip = forOthers
	}
	return forGzip > 0 && forGzip >= forIdentity
}

// weightOf reads a weight such as "q=0.5"; 0 for what is none.
func weightOf(parameter string) float64 {
	name, value, _ := strings.Cut(strings.TrimSpace(parameter), "=")
	weight, err := strconv.ParseFloat(value, 64)
	if err == nil && strings.EqualFold(name, "q") && weight >= 0 && weight <= 1 {
		return weight
	}
	return 0
}

// A client must take a page larger than drainFrom, in bytes, within drainPause and a
// second for each minDrainBytesSec of it. Smaller pages fit into the buffers of the
// kernel.
const (
	drainFrom        = 64 << 10
	drainPause       = 2 * time.Second
	minDrainBytesSec = 64 << 10
)

// drainTime is the time in which a client must take a page of this size, in bytes.
func drainTime(size int64) time.Duration {
	return drainPause + time.Duration(size)*time.Second/minDrainBytesSec
}

// answerList sends a page of a list. What follows the last error sets its header
// fields, so that none is on an error.
func (s *Server) answerList(c *gin.Context, page madePage, counted bool) error {
	unmodified, err := preconditions(c.Request, noTag)
	if err != nil {
		return err
	}
	if unmodified {
		header := c.Writer.Header()
		header["Cache-Control"], header["Vary"] = privateStore, s.varyEncoding
		sendNotModified(c)
		return nil
	}
	encoded := page.items
	zip := len(encoded) >= compressFrom && prefersGzip(c.Request.Header.Values("Accept-Encoding"))
	if zip {
		encoded = s.compressor.compress(encoded)
	}
	account, size := caller(c).AccountID, int64(len(encoded))
	if err := refusal(s.limits.sending.Take(account, size)); err != nil {
		return err
	}
	defer s.limits.sending.Give(account, size)
	if size > drainFrom && writeTimeout(c.Request.Context()) > 0 {
		setWriteDeadline(c, drainTime(size))
	}
	header := c.Writer.Header()
	header.Add("Link", page.links)
	header["Cache-Control"] = privateStore
	header["Vary"] = s.varyEncoding
	if zip {
		header.Set("Content-Encoding", "gzip")
	}
	if counted {
		header.Set("X-Total-Count", strconv.FormatInt(page.total, 10))
		header.Set("Preference-Applied", "count=exact")
	}
	send(c, http.StatusOK, asJSON, encoded)
	return nil
}

// document is a text that everybody gets alike, in either coding, each with a
// tag of its own, as strong tags are of bytes (RFC 9110, 8.8.3).
type document struct {
	contentType   []string
	plain, zipped coded
}

// coded is a text in one coding, and the header fields that go with it.
type coded struct {
	text   []byte
	etag   string
	fields http.Header
}

// newDocument prepares a document of [compressFrom] bytes or more. Vary is that
// of an answer that comes in two codings.
func newDocument(contentType string, text []byte, vary []string) document {
	writer, _ := gzip.NewWriterLevel(io.Discard, gzip.BestCompression) // fails for an unknown level alone
	hash := strings.Trim(etagOf(text), `"`)
	code := func(text []byte, etag string) coded {
		return coded{text, etag, http.Header{"Cache-Control": {"public, no-cache"}, "Vary": vary}}
	}
	return document{[]string{contentType}, code(text, `"`+hash+`"`), code(compressWith(writer, text), `"`+hash+`-gzip"`)}
}

// answer sends the document, or nothing when the client has it already.
func (d document) answer(c *gin.Context) error {
	form, zip := d.plain, prefersGzip(c.Request.Header.Values("Accept-Encoding"))
	if zip {
		form = d.zipped
	}
	return form.answer(c, d.contentType, zip)
}

// answer sends a text in the coding that was chosen, or 304 if the client has it
// already. The error is [errPreconditionFailed].
func (form coded) answer(c *gin.Context, contentType []string, zip bool) error {
	unmodified, err := preconditions(c.Request, form.etag)
	if err != nil {
		return err
	}
	header := c.Writer.Header()
	maps.Copy(header, form.fields)
	header.Set("ETag", form.etag)
	if unmodified {
		sendNotModified(c)
		return nil
	}
	if zip {
		header.Set("Content-Encoding", "gzip")
	}
	send(c, http.StatusOK, contentType, form.text)
	return nil
}

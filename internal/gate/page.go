package gate

import (
	"cmp"
	"net/http"
	"strconv"

	"github.com/gin-gonic/gin"

	"petstore/internal/httpjson"
)

// ReserveResponse counts the bytes of a response against the share of the payer, until the
// request ends. It limits the time in which the client must read them.
func (g *Gate) ReserveResponse(c *gin.Context, size int) error {
	ctx := c.Request.Context()
	if err := requestOf(c).reserved.take(ctx, g.Limits.pageBytes, int64(size)); err != nil {
		return err
	}
	if size > drainFrom && writeTimeout(ctx) > 0 {
		setWriteDeadline(c, drainTime(int64(size)))
	}
	return nil
}

// Page is a page of a list in the form in which the server sends it.
type Page struct {
	Items  []byte
	Zipped []byte // Items as [Compress] returns them; nil: the client does not want that
	Links  string // the header Link
	Total  *int64 // the number of items of all pages; nil: the client does not want it
	// ContentType is the media type of Items; "": JSON.
	ContentType string
}

// NotModified evaluates the preconditions of a response without an entity tag. It reports whether it has
// sent 304 instead, with the Vary of the response.
func NotModified(c *gin.Context, vary string) (bool, error) {
	unmodified, err := httpjson.CheckPreconditions(c.Request, httpjson.NoTag)
	if unmodified {
		c.Header("Cache-Control", "private, no-store")
		c.Header("Vary", vary)
		c.Status(http.StatusNotModified)
	}
	return unmodified, err
}

// PageBytesPerToken is the number of bytes of a page, before compression, that count as one more request.
// Pages of 200 usual items have fewer. To read, encode and compress so many takes as long as a usual request.
const PageBytesPerToken = 64 << 10

// WritePage sends a page of a list, and charges its client for a large one. It sets headers only after
// the last possible error, so that an error response has none of them.
func (g *Gate) WritePage(c *gin.Context, page Page) error {
	header, state := c.Writer.Header(), requestOf(c)
	g.Charge(c, len(page.Items)/PageBytesPerToken)
	vary := varyOfCoded
	if state.route.has(Streams) {
		vary = varyOfEvents
	}
	if unmodified, err := NotModified(c, vary); unmodified || err != nil {
		return err
	}
	encoded, zip := page.Items, page.Zipped != nil
	if zip {
		encoded = page.Zipped
	}
	if err := g.ReserveResponse(c, len(encoded)); err != nil {
		return err
	}
	header.Add("Link", page.Links)
	header.Set("Cache-Control", "private, no-store")
	header.Set("Vary", vary)
	if zip {
		header.Set("Content-Encoding", "gzip")
		state.sent.decoded(page.Items)
	}
	if page.Total != nil {
		header.Set("X-Total-Count", strconv.FormatInt(*page.Total, 10))
		httpjson.ApplyPreference(header, "count=exact")
	}
	httpjson.Send(c.Writer, http.StatusOK, cmp.Or(page.ContentType, httpjson.ContentType), encoded)
	return nil
}

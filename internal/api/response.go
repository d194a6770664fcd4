package api

import (
	"bytes"
	"net/http"
	"strconv"

	"github.com/gin-gonic/gin"
	"github.com/go-json-experiment/json"
	"github.com/go-json-experiment/json/jsontext"
)

const jsonContentType = "application/json"

// encode gives the JSON of a value in whole before a byte of it is sent, so that
// a failure is a 500 and never half a body.
func encode(value any) ([]byte, error) {
	var buffer bytes.Buffer
	err := json.MarshalWrite(&buffer, value, jsontext.EscapeForHTML(false))
	return buffer.Bytes(), err
}

// writeUntagged sends a resource that has no tag, in response to a read; the caller
// sets Cache-Control.
func writeUntagged(c *gin.Context, value any) error {
	unmodified, err := preconditions(c.Request, noTag)
	switch {
	case err != nil:
		return err
	case unmodified:
		sendNotModified(c)
		return nil
	default:
		return writeJSON(c, value)
	}
}

// answer sends a value without a tag and without regard to preconditions; the caller
// sets Cache-Control.
func writeJSON(c *gin.Context, value any) error {
	encoded, err := encode(value)
	if err != nil {
		return err
	}
	send(c, http.StatusOK, asJSON, encoded)
	return nil
}

// Values of header fields that never change. They are shared by all answers:
// making one for each would be an allocation.
var (
	asJSON       = []string{jsonContentType}
	noStore      = []string{"no-store"}
	revalidated  = []string{"private, no-cache"}
	privateStore = []string{"private, no-store"}
)

// send sends a body that is known in whole, so that its length is too.
func send(c *gin.Context, status int, contentType []string, body []byte) {
	header := c.Writer.Header()
	header["Content-Type"] = contentType
	header["Content-Length"] = []string{strconv.Itoa(len(body))}
	c.Status(status)
	_, _ = c.Writer.Write(body) // fails when the client has left, which is no matter
}

// writeNoContent sends 204.
func writeNoContent(c *gin.Context) error {
	c.Status(http.StatusNoContent)
	c.Writer.WriteHeaderNow()
	return nil
}

// itemPath is the path of the resource with this id in a collection.
func itemPath(collection string, id int64) string {
	return collection + "/" + strconv.FormatInt(id, 10)
}

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

// answer sends what is no resource, and so has no tag; the caller says who may
// store it (Cache-Control).
func answer(c *gin.Context, value any) error {
	encoded, err := encode(value)
	if err != nil {
		return err
	}
	c.Data(http.StatusOK, jsonContentType, encoded)
	return nil
}

// answerNothing sends 204.
func answerNothing(c *gin.Context) error {
	c.Status(http.StatusNoContent)
	c.Writer.WriteHeaderNow()
	return nil
}

// itemPath is the path of the resource with this id in a collection.
func itemPath(collection string, id int64) string {
	return collection + "/" + strconv.FormatInt(id, 10)
}

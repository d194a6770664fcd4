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

// answer sends a resource, or the outcome of a write.
func answer(c *gin.Context, status int, value any) error {
	encoded, err := encode(value)
	if err != nil {
		return err
	}
	if header := c.Writer.Header(); header.Get("Cache-Control") == "" {
		header.Set("Cache-Control", "private, no-cache")
	}
	c.Data(status, jsonContentType, encoded)
	return nil
}

// answerCreated sends a new resource and where it is from now on.
func answerCreated(c *gin.Context, status int, location string, value any) error {
	c.Header("Location", location)
	return answer(c, status, value)
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

package api

import (
	"maps"
	"net/http"
	"sync"

	"github.com/gin-gonic/gin"

	"petstore/internal/docs"
)

// docsFiles are the reference page and what goes with it, by path: the same for
// every server of a process.
var docsFiles = sync.OnceValues(func() (map[string]*docs.File, error) { return docs.New(Version, explained()) })

// answerFile sends a page or what it loads, or nothing when the client has it already.
func (s *Server) answerFile(c *gin.Context, file *docs.File) error {
	header := c.Writer.Header()
	form, zip := file.Plain, prefersGzip(c.Request.Header.Values("Accept-Encoding"))
	if zip {
		form = file.Compressed
	}
	coded := form()
	maps.Copy(header, file.Fields)
	header["Vary"] = s.varyEncoding
	header.Set("ETag", coded.ETag)
	if hasAlready(c.Request, coded.ETag) {
		answerNotModified(c)
		return nil
	}
	if zip {
		header.Set("Content-Encoding", "gzip")
	}
	c.Data(http.StatusOK, file.ContentType, coded.Text)
	return nil
}

package api

import (
	"sync"

	"github.com/gin-gonic/gin"

	"petstore/internal/docs"
)

// docsFiles are the reference page and what goes with it, by path: the same for
// every server of a process.
var docsFiles = sync.OnceValues(func() (map[string]*docs.File, error) { return docs.New(Version, explained()) })

// answerFile sends a page or what it loads, or nothing when the client has it already.
func (s *Server) answerFile(c *gin.Context, file *docs.File) error {
	form, zip := file.Plain, prefersGzip(c.Request.Header.Values("Accept-Encoding"))
	if zip {
		form = file.Compressed
	}
	chosen := form()
	c.Writer.Header()["Vary"] = s.varyEncoding
	return coded{chosen.Text, chosen.ETag, file.Fields}.answer(c, []string{file.ContentType}, zip)
}

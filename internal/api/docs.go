package api

import (
	"sync"

	"github.com/gin-gonic/gin"

	"petstore/internal/docs"
	"petstore/internal/httpjson"
)

// docsFiles returns the reference page and its files by path. All servers of a
// process share them.
var docsFiles = sync.OnceValues(func() (map[string]*docs.File, error) { return docs.New(Version, errorReference) })

// writeFile sends a file of the docs, or 304 if the client already has it.
func (s *Server) writeFile(c *gin.Context, file *docs.File) error {
	form, zip := file.Plain, httpjson.PrefersGzip(c.Request.Header)
	if zip {
		form = file.Compressed
	}
	chosen := form()
	c.Header("Vary", varyOfCoded)
	return variant{chosen.Text, chosen.ETag, file.Fields}.write(c, file.ContentType, zip)
}

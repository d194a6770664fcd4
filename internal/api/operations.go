package api

import (
	"net/http"
	"regexp"
	"time"

	"github.com/gin-gonic/gin"

	"petstore/internal/telemetry"
)

// operation names what a request asks for: its method, and the pattern of its
// path as gin writes it.
type operation struct{ method, path string }

// operations looks up once what counts the requests of each operation that the
// engine answers, and of those that it refuses by the methods it knows: names
// that clients make up are never told.
func operations(engine *gin.Engine, metrics *telemetry.Metrics) map[operation]*telemetry.Operation {
	all := make(map[operation]*telemetry.Operation)
	for _, r := range engine.Routes() {
		all[operation{r.Method, r.Path}] = metrics.Operation(r.Method, pathPattern(r.Path))
	}
	for _, method := range methods {
		all[operation{method, ""}] = metrics.Operation(method, telemetry.UnmatchedRoute)
	}
	all[operation{}] = metrics.Operation(telemetry.OtherMethod, telemetry.UnmatchedRoute)
	return all
}

// operation is what the request asks for.
func (s *Server) operation(c *gin.Context) *telemetry.Operation {
	if known := s.operations[operation{c.Request.Method, c.FullPath()}]; known != nil {
		return known
	}
	return s.operations[operation{}]
}

// count counts the answer to a request.
func (s *Server) count(c *gin.Context, asked *telemetry.Operation, took time.Duration) {
	asked.Answered(c.Writer.Status(), took)
	if c.Writer.Status() == http.StatusTooManyRequests {
		_, known := c.Get(identityKey)
		s.metrics.RateLimited(known)
	}
}

var ginParameter = regexp.MustCompile(`/[:*]([^/]+)`)

// pathPattern writes a path pattern of gin as OpenAPI does.
func pathPattern(path string) string { return ginParameter.ReplaceAllString(path, "/{$1}") }

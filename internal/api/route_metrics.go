package api

import (
	"regexp"
	"time"

	"github.com/gin-gonic/gin"

	"petstore/internal/telemetry"
)

// routeKey identifies a route by its method and its path pattern in gin's syntax.
type routeKey struct{ method, path string }

// routeMetrics returns the metrics of each route of the engine. Requests that match
// no route share metrics by method, and unknown methods share one: a label never has a
// name that a client chose.
func routeMetrics(engine *gin.Engine, metrics *telemetry.Metrics) map[routeKey]*telemetry.Operation {
	all := make(map[routeKey]*telemetry.Operation)
	for _, r := range engine.Routes() {
		all[routeKey{r.Method, r.Path}] = metrics.Operation(r.Method, pathPattern(r.Path))
	}
	for _, method := range methods {
		all[routeKey{method, ""}] = metrics.Operation(method, telemetry.UnmatchedRoute)
	}
	all[routeKey{}] = metrics.Operation(telemetry.OtherMethod, telemetry.UnmatchedRoute)
	return all
}

// operation returns the metrics of the route of a request.
func (s *Server) operation(c *gin.Context) *telemetry.Operation {
	if known := s.routeMetrics[routeKey{c.Request.Method, c.FullPath()}]; known != nil {
		return known
	}
	return s.routeMetrics[routeKey{}]
}

// recordMetrics counts the response to a request. It counts neither injected errors nor
// the time of injected delays, so that alerts ignore them.
func (s *Server) recordMetrics(c *gin.Context, op *telemetry.Operation, took time.Duration) {
	if injected := injectionOf(c); injected != nil {
		if injected.replacesResponse() {
			op.Leave()
			return
		}
		took -= injected.delayed
	}
	op.End(c.Writer.Status(), took)
	if limit, limited := c.Value(limitKey).(telemetry.Limit); limited {
		s.metrics.RateLimited(limit)
	}
}

var ginParameter = regexp.MustCompile(`/[:*]([^/]+)`)

// pathPattern converts a path pattern of gin to the syntax of OpenAPI.
func pathPattern(path string) string { return ginParameter.ReplaceAllString(path, "/{$1}") }

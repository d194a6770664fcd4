package gate

import (
	"log/slog"
	"maps"
	"regexp"
	"slices"
	"time"

	"github.com/gin-gonic/gin"

	"petstore/internal/telemetry"
)

// routeKey identifies a route by its method and its path pattern in gin's syntax.
type routeKey struct{ method, path string }

// observed is where the server records the requests of a route.
type observed struct {
	*telemetry.Operation

	log *slog.Logger // with the attributes method and route, which are formatted once
}

// logOf returns the log of the requests of a route.
func logOf(log *slog.Logger, method, path string) *slog.Logger {
	return log.With(slog.String("method", method), slog.String("route", path))
}

// observed returns where to record a request. The first request of a route makes it, because most
// of the hundreds of routes get no request. Requests that match no route share metrics by method,
// and unknown methods share one: a label never has a name that a client chose.
func (g *Gate) observed(c *gin.Context) observed {
	method, path := c.Request.Method, c.FullPath()
	key := routeKey{method, path}
	if path == "" && !slices.Contains(methods, method) {
		key.method = telemetry.OtherMethod
	}
	all := g.observedRoutes.Load()
	op, known := (*all)[key]
	if !known {
		route := telemetry.UnmatchedRoute
		if path != "" {
			route = pathPattern(path)
		}
		op = observed{g.options.Metrics.Operation(key.method, route), logOf(g.options.Log, method, path)}
		more := maps.Clone(*all)
		more[key] = op
		g.observedRoutes.CompareAndSwap(all, &more) // if it fails, a later request adds it
	}
	if key.method == telemetry.OtherMethod {
		op.log = logOf(g.options.Log, method, path)
	}
	return op
}

// recordMetrics counts the response to a request. It counts neither injected errors nor
// the time of injected delays, so that alerts ignore them. It does not count the time that
// a request waits for events either.
func (g *Gate) recordMetrics(c *gin.Context, op observed, took time.Duration) {
	state := requestOf(c)
	if injected := state.injected; injected != nil {
		if injected.replacesResponse() {
			op.Leave()
			return
		}
		took -= injected.delayed
	}
	op.End(c.Writer.Status(), took-state.waited)
	if state.limitReached != "" {
		g.options.Metrics.RateLimited(state.limitReached)
	}
}

var ginParameter = regexp.MustCompile(`/[:*]([^/]+)`)

// pathPattern converts a path pattern of gin to the syntax of OpenAPI.
func pathPattern(path string) string { return ginParameter.ReplaceAllString(path, "/{$1}") }

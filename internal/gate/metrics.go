package gate

import (
	"log/slog"
	"regexp"
	"sync"
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

// observe returns functions that return the metrics and the log of each route of the engine. The
// first call makes them, because most of the hundreds of routes get no request. Requests that match
// no route share metrics by method, and unknown methods share one: a label never has a
// name that a client chose.
func observe(engine *gin.Engine, metrics *telemetry.Metrics, log *slog.Logger) map[routeKey]func() observed {
	all := make(map[routeKey]func() observed)
	add := func(method, path, route string) {
		all[routeKey{method, path}] = sync.OnceValue(func() observed {
			return observed{metrics.Operation(method, route), logOf(log, method, path)}
		})
	}
	for _, r := range engine.Routes() {
		add(r.Method, r.Path, pathPattern(r.Path))
	}
	for _, method := range methods {
		add(method, "", telemetry.UnmatchedRoute)
	}
	all[routeKey{}] = sync.OnceValue(func() observed {
		return observed{metrics.Operation(telemetry.OtherMethod, telemetry.UnmatchedRoute), log}
	})
	return all
}

// logOf returns the log of the requests of a route.
func logOf(log *slog.Logger, method, path string) *slog.Logger {
	return log.With(slog.String("method", method), slog.String("route", path))
}

// observed returns where to record a request.
func (g *Gate) observed(c *gin.Context) observed {
	if known, ok := g.observedRoutes[routeKey{c.Request.Method, c.FullPath()}]; ok {
		return known()
	}
	other := g.observedRoutes[routeKey{}]()
	other.log = logOf(other.log, c.Request.Method, c.FullPath())
	return other
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
		g.metrics.RateLimited(state.limitReached)
	}
}

var ginParameter = regexp.MustCompile(`/[:*]([^/]+)`)

// pathPattern converts a path pattern of gin to the syntax of OpenAPI.
func pathPattern(path string) string { return ginParameter.ReplaceAllString(path, "/{$1}") }

package gate

import (
	"cmp"
	"slices"
	"time"

	"github.com/gin-gonic/gin"

	"petstore/internal/telemetry"
)

// operation returns the operation of a request in the metrics. Requests that match no route share
// operations by method, and unknown methods share one: a label never has a name that a client chose.
func (g *Gate) operation(c *gin.Context) telemetry.Operation {
	method, path := c.Request.Method, matchedPath(c)
	if path == "" && !slices.Contains(methods, method) {
		method = telemetry.OtherMethod
	}
	return telemetry.Operation{Method: method, Route: cmp.Or(g.patterns[path], path, telemetry.UnmatchedRoute)}
}

// recordMetrics counts the response to a request. It counts neither probes and injected errors nor
// the time of injected delays, so that alerts ignore them. It counts neither the time that
// a request waits for events nor the time of its body, which depends on the client.
func (g *Gate) recordMetrics(c *gin.Context, op telemetry.Operation, took time.Duration) {
	state := requestOf(c)
	switch injected := state.injected; {
	case state.route.has(Probe), injected != nil && injected.replacesResponse():
		g.options.Metrics.Leave()
		return
	case injected != nil:
		took -= injected.delayed
	}
	g.options.Metrics.End(op, c.Writer.Status(), took-state.waited-state.received)
	if state.limitReached != "" {
		g.options.Metrics.RateLimited(state.limitReached)
	}
}

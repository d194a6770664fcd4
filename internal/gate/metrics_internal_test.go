package gate

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"petstore/internal/telemetry"
)

// TestCountingAllocatesNothing is not parallel, because allocations of other tests
// would count.
func TestCountingAllocatesNothing(t *testing.T) { //nolint:paralleltest // see above
	engine := gin.New()
	g := &Gate{options: Options{Metrics: telemetry.NewMetrics(), Log: slog.New(slog.DiscardHandler)}}
	g.patterns = map[string]string{"/pets/:petId": "/pets/{petId}"}
	const runs = 100
	counted := ""
	engine.Use(func(c *gin.Context) {
		c.Request = c.Request.WithContext(newRequest(c.Request, time.Now()))
		c.Status(http.StatusNotFound)
		request := c.Request
		if allocated := testing.AllocsPerRun(runs, func() {
			op := g.operation(c)
			g.options.Metrics.Start()
			var span *telemetry.Span
			c.Request, span = g.options.Tracer.Request(c.Request, op)
			g.recordMetrics(c, op, time.Millisecond)
			span.End(c.Writer.Status())
		}); allocated != 0 {
			t.Errorf("%s %s: counting a request allocates %v times", request.Method, request.URL, allocated)
		}
		counted = g.operation(c).Route
	})
	engine.GET("/pets/:petId", func(*gin.Context) {})
	for _, test := range []struct{ target, want string }{
		{"/pets/1", "/pets/{petId}"},
		{"/nowhere", telemetry.UnmatchedRoute},
	} {
		engine.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), http.MethodGet, test.target, nil))
		if counted != test.want {
			t.Errorf("%s is counted as %s, want %s", test.target, counted, test.want)
		}
	}
}

package gate

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/gin-gonic/gin"

	"petstore/internal/telemetry"
)

func TestRoutesInMetrics(t *testing.T) {
	t.Parallel()
	engine := gin.New()
	g := &Gate{options: Options{Metrics: telemetry.NewMetrics(), Log: slog.New(slog.DiscardHandler)}}
	g.observedRoutes.Store(&map[routeKey]observed{})
	engine.Use(func(c *gin.Context) { g.observed(c) })
	engine.GET("/pets/:petId", func(*gin.Context) {})
	for _, test := range []struct{ target, path, want string }{
		{"/pets/1", "/pets/:petId", "/pets/{petId}"},
		{"/nowhere", "", telemetry.UnmatchedRoute},
	} {
		engine.ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(t.Context(), http.MethodGet, test.target, nil))
		if got := (*g.observedRoutes.Load())[routeKey{http.MethodGet, test.path}].Route; got != test.want {
			t.Errorf("%s is counted as %s, want %s", test.target, got, test.want)
		}
	}
}

package telemetry_test

import (
	"net/http"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
	"time"

	"petstore/internal/telemetry"
)

// exposed returns the metrics as Prometheus reads them.
func exposed(t *testing.T, m *telemetry.Metrics) string {
	t.Helper()
	recorder := httptest.NewRecorder()
	m.Handler().ServeHTTP(recorder, httptest.NewRequestWithContext(t.Context(), http.MethodGet, "/metrics", nil))
	if recorder.Code != http.StatusOK {
		t.Fatalf("GET /metrics: %d: %s", recorder.Code, recorder.Body)
	}
	return recorder.Body.String()
}

func TestMetricsOfOperations(t *testing.T) {
	t.Parallel()
	m := telemetry.NewMetrics()
	m.SetVersion("v1.2.3")
	m.WatchKeys(func() (hits, misses uint64) { return 7, 3 })
	for _, status := range []int{200, 200, 503, 451, 599, 0, 1000} {
		m.Start()
		m.End(telemetry.Operation{Method: "GET", Route: "/pets"}, status, 3*time.Millisecond)
	}
	m.Start()
	m.RateLimited(telemetry.KeyLimit)
	m.RateLimited(telemetry.AddressLimit)
	m.RateLimited(telemetry.AddressLimit)
	m.Replayed()
	m.Injected("delay")
	m.SetDue(true, 2, 3.5)
	m.Start()
	m.Leave()

	told := exposed(t, m)
	for _, line := range []string{
		`petstore_http_requests_total{method="GET",route="/pets",status="200"} 2`,
		`petstore_http_requests_total{method="GET",route="/pets",status="503"} 1`,
		`petstore_http_requests_total{method="GET",route="/pets",status="451"} 1`,
		`petstore_http_requests_total{method="GET",route="/pets",status="599"} 1`,
		`petstore_http_requests_total{method="GET",route="/pets",status="0"} 1`,
		`petstore_http_requests_total{method="GET",route="/pets",status="1000"} 1`,
		`petstore_http_request_duration_seconds_bucket{method="GET",route="/pets",le="0.0025"} 0`,
		`petstore_http_request_duration_seconds_bucket{method="GET",route="/pets",le="0.005"} 7`,
		`petstore_http_requests_in_flight 1`,
		`petstore_http_rate_limited_total{limit="key"} 1`,
		`petstore_http_rate_limited_total{limit="account"} 0`,
		`petstore_http_rate_limited_total{limit="concurrency"} 0`,
		`petstore_http_rate_limited_total{limit="address"} 2`,
		`petstore_idempotent_replays_total 1`,
		`petstore_injected_faults_total{effect="delay"} 1`,
		`petstore_webhooks_due{failing="true"} 2`,
		`petstore_webhook_oldest_due_seconds{failing="true"} 3.5`,
		`petstore_key_cache_lookups_total{result="hit"} 7`,
		`petstore_key_cache_lookups_total{result="miss"} 3`,
	} {
		if !strings.Contains(told, line+"\n") {
			t.Errorf("no line %s in:\n%s", line, told)
		}
	}
	_, help, _ := strings.Cut(told, "# HELP petstore_http_rate_limited_total ")
	help, series, _ := strings.Cut(help, "\n")
	for _, label := range regexp.MustCompile(`petstore_http_rate_limited_total{limit="(\w+)"}`).FindAllStringSubmatch(series, -1) {
		if !strings.Contains(help, label[1]+" (") {
			t.Errorf("the help of the rate limits has no %s: %s", label[1], help)
		}
	}
	if !strings.Contains(told, `version="v1.2.3"`) {
		t.Error("the metrics do not contain the version")
	}
}

package telemetry

import (
	"fmt"
	"net/http"
	"strings"
	"testing"

	"go.opentelemetry.io/otel/trace"
)

// TestTraceState: a request keeps its tracestate, unless that is very long.
func TestTraceState(t *testing.T) {
	t.Parallel()
	for length, want := range map[int]int{100: 32, 200: 0} {
		entries := make([]string, 32)
		for i := range entries {
			entries[i] = fmt.Sprintf("k%d=%s", i, strings.Repeat("v", length))
		}
		r := (&http.Request{Header: http.Header{
			"Traceparent": {"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}, "Tracestate": {strings.Join(entries, ",")},
		}}).WithContext(t.Context())
		if got := trace.SpanContextFromContext(withParent(r)).TraceState().Len(); got != want {
			t.Errorf("values of %d bytes: %d entries, want %d", length, got, want)
		}
	}
}

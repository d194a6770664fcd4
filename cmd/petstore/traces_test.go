package main

import (
	"encoding/hex"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	collector "go.opentelemetry.io/proto/otlp/collector/trace/v1"
	tracepb "go.opentelemetry.io/proto/otlp/trace/v1"
	"google.golang.org/protobuf/proto"

	"petstore/internal/pgtest"
	"petstore/internal/tools/need"
)

// spanCollector receives spans by OTLP over HTTP.
type spanCollector struct {
	url      string
	mu       sync.Mutex
	received []byte
	spans    []*tracepb.Span
	mistakes []error
	service  string
}

func startCollector(t *testing.T) *spanCollector {
	t.Helper()
	c := &spanCollector{}
	server := need.Server(t, func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		var sent collector.ExportTraceServiceRequest
		if err == nil {
			err = proto.Unmarshal(body, &sent)
		}
		c.mu.Lock()
		defer c.mu.Unlock()
		if err != nil {
			c.mistakes = append(c.mistakes, err)
		}
		c.received = append(c.received, body...)
		for _, resource := range sent.ResourceSpans {
			for _, attribute := range resource.Resource.Attributes {
				if attribute.Key == "service.name" {
					c.service = attribute.Value.GetStringValue()
				}
			}
			for _, scope := range resource.ScopeSpans {
				c.spans = append(c.spans, scope.Spans...)
			}
		}
		w.Header().Set("Content-Type", "application/x-protobuf")
	})
	c.url = server.URL
	return c
}

// span is the part of a span that the tests compare.
type span struct {
	Name, Parent string // names of spans; "remote" is the span of the client
	Attributes   map[string]string
	Failed       bool
}

// trace returns the spans of a trace in the order of their start times.
func (c *spanCollector) trace(id, remoteParent string) []span {
	c.mu.Lock()
	defer c.mu.Unlock()
	names := map[string]string{remoteParent: "remote"}
	var mine []*tracepb.Span
	for _, s := range c.spans {
		if hex.EncodeToString(s.TraceId) == id {
			names[hex.EncodeToString(s.SpanId)] = s.Name
			mine = append(mine, s)
		}
	}
	slices.SortFunc(mine, func(a, b *tracepb.Span) int { return int(a.StartTimeUnixNano) - int(b.StartTimeUnixNano) })
	var all []span
	for _, s := range mine {
		one := span{Name: s.Name, Parent: names[hex.EncodeToString(s.ParentSpanId)], Attributes: map[string]string{}, Failed: s.Status.GetCode() == tracepb.Status_STATUS_CODE_ERROR}
		for _, attribute := range s.Attributes {
			value := attribute.Value.GetStringValue()
			if value == "" {
				value = strconv.FormatInt(attribute.Value.GetIntValue(), 10)
			}
			one.Attributes[attribute.Key] = value
		}
		all = append(all, one)
	}
	return all
}

// TestTraces: with the OpenTelemetry variables set, the collector receives the
// spans of a request and its statements, as children of the client's span and
// without secrets. A span names its injected fault, and does not fail.
func TestTraces(t *testing.T) {
	t.Parallel()
	spans := startCollector(t)
	environ := []string{
		replicasVariable, // each statement would have the position of its server in its span
		"DATABASE_URL=" + pgtest.New(t).URL, "PETSTORE_ADDR=127.0.0.1:0", "PETSTORE_LOG_FORMAT=json",
		"OTEL_EXPORTER_OTLP_ENDPOINT=" + spans.url, "OTEL_SERVICE_NAME=shop",
	}
	key := strings.TrimSpace(must(t, environ, "key", "create", "--account", "acme", "--scope", "write"))
	p := begin(t, emptyDir, environ, "serve")
	base := p.address()
	const (
		parent   = "00f067aa0ba902b7"
		listing  = "4bf92f3577b34da6a3ce929d0e0e4736"
		creating = "4bf92f3577b34da6a3ce929d0e0e4737"
		refused  = "4bf92f3577b34da6a3ce929d0e0e4738"
		unwanted = "4bf92f3577b34da6a3ce929d0e0e4739"
		failing  = "4bf92f3577b34da6a3ce929d0e0e4740"
		injected = "4bf92f3577b34da6a3ce929d0e0e4741"
	)
	const category = `{"name":"hidden category"}`
	post(t, base+"/categories", key, category)
	p.expect(`"msg":"request"`)
	for _, r := range []struct{ method, target, body, trace, flags string }{
		{http.MethodGet, "/categories?name=hidden-name", "", listing, "01"},
		{http.MethodPost, "/messages", `{"message":"hidden message"}`, creating, "01"},
		{http.MethodPost, "/categories", category, failing, "01"},
		{http.MethodGet, "/hidden/path", "", refused, "01"},
		{http.MethodGet, "/pets", "", unwanted, "00"},
	} {
		header := http.Header{"Traceparent": {"00-" + r.trace + "-" + parent + "-" + r.flags}, "User-Agent": {"hidden-agent"}}
		if r.trace == creating {
			header.Set("Idempotency-Key", "hidden-retry")
		}
		httpRequest{r.method, base + r.target, key, r.body, header}.send(t)
	}
	status(t, base+"/livez", key)
	if got := traceIDs(p, 6); !slices.Equal(got[:5], []string{listing, creating, failing, refused, unwanted}) || len(got[5]) != len(listing) {
		t.Errorf("the log lines have the trace ids %q", got)
	}
	sandbox := strings.TrimSpace(must(t, environ, "sandbox", "create", "--account", "acme", "--sample", "empty"))
	rules := `{"rules": [{"operation": "listPets", "effect": "status", "status": 500}]}`
	httpRequest{method: http.MethodPut, url: base + "/sandboxes/current/faults", key: sandbox, body: rules}.send(t)
	httpRequest{method: http.MethodGet, url: base + "/pets", key: sandbox, header: http.Header{"Traceparent": {"00-" + injected + "-" + parent + "-01"}}}.send(t)
	p.exits(0, syscall.SIGTERM)

	request := func(method, route, status string) map[string]string {
		all := map[string]string{"http.request.method": method, "http.response.status_code": status, "url.scheme": "http"}
		if route != "" {
			all["http.route"] = route
		}
		return all
	}
	statement := func(name, parent string) span {
		return span{Name: name, Parent: parent, Attributes: map[string]string{"db.system.name": "postgresql", "db.query.summary": name}}
	}
	conflict := statement("CategoryInsert, EventsAppend, COMMIT", "POST /categories")
	conflict.Attributes["error.type"], conflict.Failed = "23505", true
	fault := request("GET", "/pets", "500")
	fault["petstore.fault"] = "0/status"
	for trace, want := range map[string][]span{
		listing: {
			{Name: "GET /categories", Parent: "remote", Attributes: request("GET", "/categories", "200")},
			statement("CategoryList", "GET /categories"),
		},
		creating: {
			{Name: "POST /messages", Parent: "remote", Attributes: request("POST", "/messages", "202")},
			statement("BEGIN, IdempotencyKeysLock, IdempotencyKeysGet, TransactionTime", "POST /messages"),
			statement("MessagesInsert, IdempotencyKeysInsert, EventsAppend, COMMIT", "POST /messages"),
		},
		failing: {
			{Name: "POST /categories", Parent: "remote", Attributes: request("POST", "/categories", "409")},
			statement("BEGIN, IDsReserve", "POST /categories"),
			conflict,
			statement("ROLLBACK", "POST /categories"),
		},
		refused: {{Name: "GET", Parent: "remote", Attributes: request("GET", "", "404")}},
		injected: {
			{Name: "GET /pets", Parent: "remote", Attributes: fault},
			statement("FaultList", "GET /pets"),
			statement("FaultCount", "GET /pets"),
		},
		unwanted: nil, // the client does not record its trace
	} {
		// The server looks up a key whenever its cache was emptied.
		got := slices.DeleteFunc(spans.trace(trace, parent), func(s span) bool { return s.Name == "APIKeyLookUp" })
		need.Same(t, want, got, "trace %s", trace)
	}
	if spans.service != "shop" || len(spans.mistakes) > 0 {
		t.Errorf("the spans have the service %q and the errors %v", spans.service, spans.mistakes)
	}
	watch(t, "the spans", string(spans.received))
	for _, secret := range []string{key, key[len("petstore_"):], "hidden", "Bearer"} {
		if strings.Contains(string(spans.received), secret) {
			t.Errorf("the spans contain %q", secret)
		}
	}
}

// traceIDs returns the trace ids of the log lines of the next requests.
func traceIDs(p *process, requests int) []string {
	p.t.Helper()
	ids := make([]string, requests)
	for i := range ids {
		var line struct {
			TraceID string `json:"trace_id"`
		}
		need.OK(p.t, json.Unmarshal([]byte(p.expect(`"msg":"request"`)), &line))
		ids[i] = line.TraceID
	}
	return ids
}

// TestNoTraces: the server contacts a collector only if the variables are set, and
// works without a reachable one.
func TestNoTraces(t *testing.T) {
	t.Parallel()
	spans := startCollector(t)
	environ := []string{"DATABASE_URL=" + pgtest.New(t).URL, "PETSTORE_ADDR=127.0.0.1:0", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=" + spans.url}
	for _, off := range []string{"OTEL_SDK_DISABLED=TRUE", "OTEL_TRACES_EXPORTER=none"} {
		p := begin(t, emptyDir, append(slices.Clone(environ), off), "serve")
		status(t, p.address()+"/readyz", "")
		p.exits(0, os.Interrupt)
	}
	if len(spans.received) > 0 {
		t.Errorf("%d bytes of spans were sent, want 0", len(spans.received))
	}
	away := begin(t, emptyDir, append(slices.Clone(environ), "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT=http://127.0.0.1:1"), "serve")
	wantStatus(t, away.address()+"/readyz", "", http.StatusOK)
	away.exits(0, os.Interrupt)
	away.expect("tracing failed")
}

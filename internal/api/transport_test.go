package api_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"petstore/internal/api"
	"petstore/internal/auth"
	"petstore/internal/postgres"
	"petstore/internal/tools/need"
)

// allow returns the Allow header of each path in the spec.
func allow() map[string]string {
	all := map[string]string{}
	for path, item := range theContract().document.Paths.Map() {
		methods := []string{"OPTIONS"}
		for method := range item.Operations() {
			methods = append(methods, method)
			if method == "GET" {
				methods = append(methods, "HEAD")
			}
		}
		slices.Sort(methods)
		all[path] = strings.Join(methods, ", ")
	}
	all["/"] = "GET, HEAD, OPTIONS"
	return all
}

// pathParameter matches a parameter of a path in the spec.
var pathParameter = regexp.MustCompile(`{\w+}`)

// filled replaces the parameters of a path.
func filled(path, value string) string {
	path = strings.ReplaceAll(path, "{sandboxId}", "sbx_"+value)
	return pathParameter.ReplaceAllLiteralString(path, value)
}

func TestMethodNotAllowed(t *testing.T) {
	t.Parallel()
	p := start(t)
	methods := []string{"GET", "POST", "PUT", "PATCH", "DELETE", "TRACE", "FOO", "get", "PROPFIND"}
	for path, want := range allow() {
		for _, method := range methods {
			if slices.Contains(strings.Split(want, ", "), method) {
				continue
			}
			for _, value := range []string{"1", "0", "x%2Fy", "summaryx"} {
				resp := p.as("").do(method, filled(path, value), nil).wantError(405, "method_not_allowed")
				resp.wantHeader("Allow", want)
			}
		}
	}
}

func TestRouteNotFound(t *testing.T) {
	t.Parallel()
	p := start(t)
	for _, path := range []string{
		"//", "/pets/", "//pets", "/pets//", "/pets//1", "/pets/1/", "/pets/1//", "/pets/1/orders", "/Pets", "/PETS/1", "/pet",
		"/%70ets", "/pets%2F1", "/pets%2f", "/./pets", "/../pets", "/pets/../pets", "/pets;v=1", "/pets.json",
		"/store", "/store/", "/store/orders/", "/store//orders", "/store%2Forders", "/store/inventory/summary/", "/store/inventory/summary/1",
		"/store/inventory//", "/webhooks//deliveries", "/webhooks/x/deliveries//retry", "/sandboxes//requests/1", "/account/api-keys//rotate", "/messages/", "/livez/", "/readyz/x", "/openapi.yml", "/openapi.json/", "/metrics", "/debug/pprof/", "/v1/pets", "/*", "/:petId",
	} {
		for _, method := range []string{"GET", "POST", "DELETE", "FOO"} {
			p.as("").do(method, path, nil).wantError(404, "route_not_found")
		}
	}
}

func TestRoot(t *testing.T) {
	t.Parallel()
	p := start(t).as("")
	for _, method := range []string{"GET", "HEAD"} {
		p.do(method, "/docs/", nil).want(308).wantHeader("Location", "/docs")
		p.do(method, "/", nil).want(302).wantHeader("Location", "/docs")
	}
	p = p.with(func(o *api.Options) { o.BaseURL = "https://petstore.example" })
	p.get("/docs/").want(308).wantHeader("Location", "https://petstore.example/docs")
	p.get("/").want(302).wantHeader("Location", "https://petstore.example/docs")
}

// TestHead: HEAD returns the header of GET without the body, in either coding.
func TestHead(t *testing.T) {
	t.Parallel()
	p := start(t).readingPrimary() // the cursors of a standby are different each time
	petID := p.newPet("one", 5)
	orderID := p.newOrder(petID, 1)
	messageID := decode[message](p.post("/messages", object{"message": "hello"}).want(202)).ID
	for i := range 3 {
		p.newCategory(fmt.Sprint(i) + strings.Repeat(" long", 30))
	}
	p.post("/categories", object{"name": "long", "description": strings.Repeat("x", 1000)}).want(201)
	for _, target := range []string{
		sandboxesPath, p.newSandbox("one", "empty").path(),
		"/pets", "/categories", "/categories?limit=2&sort=-name", "/store/orders", "/store/inventory", "/store/inventory/summary", "/messages", "/account", "/account/api-keys",
		fmt.Sprintf("/pets/%d", petID), "/categories/1", fmt.Sprintf("/store/orders/%d", orderID), fmt.Sprintf("/store/inventory/%d", petID), "/messages/" + messageID,
		"/openapi.json", "/openapi.yaml", "/livez", "/readyz", "/",
		"/nothing", "/pets/9999", "/pets/0", "/pets?x", "/pets?cursor=x",
	} {
		compareHead(p, target, "identity")
		compareHead(p, target, "gzip")
	}
	p.as("").do("HEAD", "/pets", nil).want(401)
}

func compareHead(p *petstore, target, coding string) {
	p.t.Helper()
	get, head := p.do("GET", target, nil, "Accept-Encoding", coding), p.do("HEAD", target, nil, "Accept-Encoding", coding)
	need.Same(p.t, get.status, head.status, "%s: the status", head.what)
	need.Same(p.t, "", string(head.body), "%s: the body", head.what)
	for _, header := range []http.Header{get.header, head.header} {
		header.Del("X-Request-Id")
		header.Del("Date")
		if target == "/" {
			header.Del("Content-Length") // net/http writes the text of a redirect for GET only
		}
	}
	need.Same(p.t, get.header, head.header, "HEAD %s: header (want: GET, got: HEAD)", target)
}

// TestHeadersOfEveryResponse lists every header field of every kind of response.
func TestHeadersOfEveryResponse(t *testing.T) {
	t.Parallel()
	p := startAlone(t)
	onePet := fmt.Sprintf("/pets/%d", p.newPet("one", 5))
	order := object{"petId": 1001, "quantity": 1}
	once := []string{"Idempotency-Key", "1"}
	p.do("POST", "/store/orders", order, once...).want(201)
	etag := p.get("/categories/1001").want(200).header.Get("ETag")
	reader := p.newKey("tester", auth.Read)
	broken := p.with(func(o *api.Options) { o.Verifier = nil })
	closed := p.with(func(o *api.Options) { o.DB = p.closedPool() })
	ended := p.with(func(o *api.Options) { o.EnforceSunset, o.Now = true, func() time.Time { return time.Unix(1<<32, 0) } })

	const (
		isJSON      = "Content-Type: application/json"
		private     = "Cache-Control: private, no-cache"
		publicText  = "Cache-Control: public, no-cache"
		list        = "Cache-Control: private, no-store"
		noStore     = "Cache-Control: no-store"
		varies      = "Vary: Origin, Accept-Encoding"
		zipped      = "Content-Encoding: gzip"
		wantsKey    = `WWW-Authenticate: Bearer realm="petstore"`
		deprecated  = "Deprecation: @1782864000"
		sunset      = "Sunset: Fri, 31 Dec 2027 23:59:59 GMT"
		successor   = `Link: </docs/reference/pets#getPet>; rel="deprecation", </pets?id=1001>; rel="successor-version"`
		petMethods  = "DELETE, GET, HEAD, OPTIONS, PATCH"
		listMethods = "GET, HEAD, OPTIONS, POST"
	)
	first := func(target string) string { return fmt.Sprintf(`Link: <%s>; rel="first"`, target) }
	for _, test := range []struct {
		resp   *response
		status int
		want   []string // in addition to the headers of every response; a field without a value may have any
	}{
		{p.get("/categories/1001"), 200, []string{isJSON, private, "ETag"}},
		{p.do("GET", "/categories/1001", nil, "Accept-Encoding", "gzip"), 200, []string{isJSON, private, "ETag"}},
		{p.do("HEAD", "/categories/1001", nil), 200, []string{isJSON, private, "ETag"}},
		{p.do("GET", "/categories/1001", nil, "If-None-Match", etag), 304, []string{private, "ETag"}},
		{p.patch("/categories/1001", object{}), 200, []string{isJSON, private, "ETag"}},
		{p.put("/store/inventory/1001", object{"quantity": 5}), 200, []string{isJSON, private, "ETag"}},
		{p.get(onePet), 200, []string{isJSON, private, "ETag", deprecated, sunset, successor}},
		{p.get("/pets"), 200, []string{isJSON, list, varies, first("/pets")}},
		{p.do("HEAD", "/pets", nil), 200, []string{isJSON, list, varies, first("/pets")}},
		{p.get("/store/inventory/summary"), 200, []string{isJSON, list}},
		{p.post("/pets", object{"name": "two", "categoryId": 1001}), 201, []string{isJSON, private, "ETag", "Location: /pets/1002"}},
		{p.do("POST", "/store/orders", order, once...), 201, []string{isJSON, private, "ETag", "Location: /store/orders/1001", "Idempotent-Replayed: true"}},
		{p.post("/messages", object{"message": "hello"}), 202, []string{isJSON, private, "Location"}},
		{p.del("/pets/1002"), 204, nil},
		{p.get("/account"), 200, []string{isJSON, list}},
		{p.get(sandboxesPath), 200, []string{isJSON, list, varies, first(sandboxesPath)}},
		{p.get("/account/api-keys"), 200, []string{isJSON, list, varies, first("/account/api-keys")}},
		{p.post("/account/api-keys", object{"name": "x", "scope": "read"}), 201, []string{isJSON, noStore, "Location: /account/api-keys/1003"}},
		{p.post("/account/api-keys/1003/rotate", nil), 201, []string{isJSON, noStore, "Location: /account/api-keys/1003"}},
		{p.get("/account/api-keys/1003"), 200, []string{isJSON, list}},
		{p.del("/account/api-keys/1003"), 204, nil},
		{p.get(p.newSandbox("one", "empty").path()), 200, []string{isJSON, list}},
		{p.get("/openapi.json"), 200, []string{isJSON, publicText, "ETag", varies}},
		{p.do("GET", "/openapi.yaml", nil, "Accept-Encoding", "gzip"), 200, []string{"Content-Type: application/yaml", publicText, "ETag", varies, zipped}},
		{p.do("HEAD", "/openapi.yaml", nil, "Accept-Encoding", "gzip"), 200, []string{"Content-Type: application/yaml", publicText, "ETag", varies, zipped}},
		{p.do("GET", "/openapi.yaml", nil, "Accept-Encoding", "gzip", "If-None-Match", "*"), 304, []string{publicText, "ETag", varies}},
		{p.get("/livez"), 200, []string{isJSON, noStore}},
		{p.get("/readyz"), 200, []string{isJSON, noStore}},
		{p.get("/"), 302, []string{"Content-Type", "Location"}},
		{p.do("OPTIONS", "/pets", nil), 204, []string{"Allow: " + listMethods}},
		{p.do("OPTIONS", "/pets", nil, "Origin", "https://shop.example", "Access-Control-Request-Method", "POST"), 204, []string{
			"Allow: " + listMethods, "Access-Control-Allow-Origin: *", "Access-Control-Expose-Headers: " + exposedHeaders, "Access-Control-Allow-Methods: " + listMethods, "Access-Control-Allow-Headers: " + allowedHeaders, "Access-Control-Max-Age: 7200",
		}},

		{p.post("/categories", "{"), 400, []string{isJSON, noStore}},
		{p.post("/categories", object{}), 400, []string{isJSON, noStore}},
		{p.do("POST", "/categories", "{}", "Content-Type", "text/plain"), 400, []string{isJSON, noStore}},
		{p.get("/pets?x"), 400, []string{isJSON, noStore}},
		{p.get("/pets?cursor=x"), 400, []string{isJSON, noStore}},
		{p.do("POST", "/messages", object{"message": "hello"}, "Idempotency-Key", "a b"), 400, []string{isJSON, noStore}},
		{p.as("").get("/pets"), 401, []string{isJSON, noStore, wantsKey}},
		{p.as("x").get("/pets"), 401, []string{isJSON, noStore, wantsKey + `, error="invalid_token"`}},
		{p.as("").get(onePet), 401, []string{isJSON, noStore, wantsKey, deprecated, sunset, successor}},
		{p.as(reader).post("/categories", object{"name": "x"}), 403, []string{isJSON, noStore, wantsKey + `, error="insufficient_scope"`}},
		{p.get("/nothing"), 404, []string{isJSON, noStore}},
		{p.do("HEAD", "/nothing", nil), 404, []string{isJSON, noStore}},
		{p.get("/categories/4711"), 404, []string{isJSON, noStore}},
		{p.put(onePet, object{}), 405, []string{isJSON, noStore, "Allow: " + petMethods}},
		{p.do("GET", "/pets", nil, "Accept", "text/html"), 406, []string{isJSON, noStore}},
		{p.post("/store/orders", object{"petId": 1001, "quantity": 1000}), 409, []string{isJSON, noStore}},
		{ended.get(onePet), 410, []string{isJSON, noStore, deprecated, sunset, successor}},
		{p.do("PATCH", "/categories/1001", object{}, "If-Match", `"x"`), 412, []string{isJSON, noStore}},
		{p.post("/categories", padded("x", maxBodyBytes+1)), 413, []string{isJSON, noStore}},
		{p.post("/store/orders", object{"petId": 4711}), 422, []string{isJSON, noStore}},
		{p.do("POST", "/store/orders", object{"petId": 2}, once...), 422, []string{isJSON, noStore}},
		{broken.get("/pets"), 500, []string{isJSON, noStore}},
		{broken.get(onePet), 500, []string{isJSON, noStore, deprecated, sunset, successor}},
		{closed.get("/pets"), 503, []string{isJSON, noStore, "Retry-After: 1"}},
		{closed.get("/readyz"), 503, []string{isJSON, noStore, "Retry-After: 1"}},
	} {
		want := http.Header{}
		everywhere := []string{"API-Version: 1.0.0", "X-Content-Type-Options: nosniff", "X-Request-Id", "Date"}
		if !slices.ContainsFunc(test.want, func(field string) bool { return strings.HasPrefix(field, "Vary: ") }) {
			everywhere = append(everywhere, "Vary: Origin")
		}
		for _, field := range append(test.want, everywhere...) {
			name, value, hasValue := strings.Cut(field, ": ")
			if !hasValue {
				value = test.resp.header.Get(name)
			}
			want.Add(name, value)
			if value == "" {
				t.Errorf("%s: %d without %s", test.resp.what, test.status, name)
			}
		}
		got := test.resp.want(test.status).header.Clone()
		for _, name := range []string{"Content-Length", "RateLimit", "RateLimit-Policy"} { // covered by other tests
			got.Del(name)
		}
		need.Same(t, want, got, "%s: %d: header", test.resp.what, test.status)
	}
}

func (p *petstore) closedPool() *postgres.DB {
	p.t.Helper()
	pool := need.Value(postgres.Open(p.t.Context(), p.dbURL, 1))(p.t)
	pool.Close()
	return pool
}

func TestRequestID(t *testing.T) {
	t.Parallel()
	p := start(t)
	for _, id := range []string{"1", "a.B_c-9", strings.Repeat("x", 128), "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"} {
		need.Same(t, id, p.do("GET", "/pets/1", nil, "X-Request-Id", id).wantError(404, "pet_not_found").error().RequestID,
			"the request id")
	}
	made := map[string]bool{}
	for _, id := range []string{"", " ", "a b", "a\tb", "é", "a/b", "a,b", `{"level":"error"}`, strings.Repeat("x", 129), "${jndi:ldap://x}"} {
		got := p.do("GET", "/pets/1", nil, "X-Request-Id", id).wantError(404, "pet_not_found").error().RequestID
		if got == id || made[got] || !regexp.MustCompile(`^[A-Za-z0-9._-]{16,128}$`).MatchString(got) {
			t.Errorf("for %q, the server generated the request id %q", id, got)
		}
		made[got] = true
	}
}

// logLine is the log line of a request.
type logLine struct {
	Level, Msg, Method, Route, Key, Error, Fault string
	Status                                       int
	DurationUS                                   *int64 `json:"duration_us"`
	RequestID                                    string `json:"request_id"`
	TraceID                                      string `json:"trace_id"`
}

// logLines returns the log lines that fulfil a condition.
func logLines[T any](p *petstore, accepts func(T) bool) (found []T) {
	p.t.Helper()
	for text := range strings.Lines(p.log.String()) {
		var line T
		if err := json.Unmarshal([]byte(text), &line); err != nil {
			p.t.Fatalf("%v: %s", err, text)
		}
		if accepts(line) {
			found = append(found, line)
		}
	}
	return found
}

func (p *petstore) logged(requestID string) []logLine {
	p.t.Helper()
	return logLines(p, func(line logLine) bool { return line.RequestID == requestID })
}

// wantLogged waits for the log line of a request, which must be the only one with this level, status,
// fault and error.
func (p *petstore) wantLogged(requestID string, want logLine) {
	p.t.Helper()
	need.Within(p.t, 30*time.Second, "the request is logged", func() bool { return len(p.logged(requestID)) > 0 })
	var got []logLine
	for _, line := range p.logged(requestID) {
		got = append(got, logLine{Level: line.Level, Status: line.Status, Fault: line.Fault, Error: line.Error})
	}
	need.Same(p.t, []logLine{want}, got, "log of the request %s", requestID)
}

// TestLog: each request has one log line, and no log line contains a key.
func TestLog(t *testing.T) {
	t.Parallel()
	p := start(t)
	prefix := p.key[:len("petstore_")+8]
	wellFormed := auth.NewSecret().Reveal()
	tests := []struct {
		method, target, key string
		body                any
		want                logLine
	}{
		{"GET", "/pets/77?x=secret", p.key, nil, logLine{Level: "INFO", Route: "/pets/{petId}", Status: 400, Key: prefix}},
		{"GET", "/pets/77", p.key, nil, logLine{Level: "INFO", Route: "/pets/{petId}", Status: 404, Key: prefix}},
		{"HEAD", "/pets", p.key, nil, logLine{Level: "INFO", Route: "/pets", Status: 200, Key: prefix}},
		{"POST", "/messages", p.key, object{"message": "secret"}, logLine{Level: "INFO", Route: "/messages", Status: 202, Key: prefix}},
		{"GET", "/store/inventory/summary", "", nil, logLine{Level: "INFO", Route: "/store/inventory/summary", Status: 401}},
		{"GET", "/pets", wellFormed, nil, logLine{Level: "INFO", Route: "/pets", Status: 401}},
		{"GET", "/pets", "secret", nil, logLine{Level: "INFO", Route: "/pets", Status: 401}},
		{"GET", "/secret/path", p.key, nil, logLine{Level: "INFO", Route: "unmatched", Status: 404}},
		{"OPTIONS", "/pets", "", nil, logLine{Level: "INFO", Route: "/pets", Status: 204}},
		{"GET", "/livez", "", nil, logLine{Level: "INFO", Route: "/livez", Status: 200}},
		{wellFormed, "/pets", "", nil, logLine{Level: "INFO", Method: "_OTHER", Route: "unmatched", Status: 405}},
	}
	for i, test := range tests {
		id := fmt.Sprintf("request-%d", i)
		p.as(test.key).do(test.method, test.target, test.body, "X-Request-Id", id)
		lines := p.logged(id)
		if len(lines) != 1 {
			t.Errorf("%s %s: %d log lines, want 1", test.method, test.target, len(lines))
			continue
		}
		got := lines[0]
		if got.DurationUS == nil || *got.DurationUS < 0 {
			t.Errorf("%s %s: the log line has no duration", test.method, test.target)
		}
		got.DurationUS = nil
		test.want.Msg, test.want.Method, test.want.RequestID = "request", cmp.Or(test.want.Method, test.method), id
		need.Same(t, test.want, got, "%s %s: log line", test.method, test.target)
	}
	if id := p.do("GET", "/livez", nil, "X-Request-Id", wellFormed).header.Get("X-Request-Id"); len(p.logged(id)) != 1 {
		t.Errorf("a request whose id was a key is not logged as %s", id)
	}
	for _, secret := range []string{p.key[len(prefix):], wellFormed[len(prefix):], "secret", "Bearer"} {
		if strings.Contains(p.log.String(), secret) {
			t.Errorf("the log contains %q:\n%s", secret, p.log)
		}
	}
}

// TestPanic: a panic is a 500 whose details go to the log and not to the client.
// Here the server panics because it has no verifier.
func TestPanic(t *testing.T) {
	t.Parallel()
	p := start(t)
	broken := p.with(func(o *api.Options) { o.Verifier = nil })
	resp := broken.do("GET", "/pets", nil, "X-Request-Id", "panicked").wantError(500, "internal_error")
	want := errorBody{Code: "internal_error", Message: "The server failed. Quote the request id when you report it.", Status: 500, RequestID: "panicked"}
	need.Same(t, want, resp.error(), "the Error")
	lines := p.logged("panicked")
	if len(lines) != 1 || lines[0].Level != "ERROR" || lines[0].Status != 500 ||
		!strings.Contains(lines[0].Error, "nil pointer dereference") || !strings.Contains(lines[0].Error, "verifier.go") {
		t.Errorf("the log lines do not contain the panic: %+v", lines)
	}
	broken.get("/livez").want(200)
}

// TestTraceparent: a request with a traceparent header is logged with its trace id. The
// server parses it as OpenTelemetry does, so the log and the spans agree.
func TestTraceparent(t *testing.T) {
	t.Parallel()
	p := start(t).as("")
	const trace, parent = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
	tests := map[string]string{
		"":                                   "",
		"00-" + trace + "-" + parent + "-01": trace,
		"00-" + trace + "-" + parent + "-00": trace,
		"01-" + trace + "-" + parent + "-01": trace,
		"00-" + strings.Repeat("0", 32) + "-" + parent + "-01":                   "",
		"00-" + trace[1:] + "-" + parent + "-01":                                 "",
		"00-" + trace + "-" + parent + "-01, 00-" + trace + "-" + parent + "-01": "",
	}
	wantTrace := func(resp *response, want string) {
		t.Helper()
		if lines := p.logged(resp.header.Get("X-Request-Id")); len(lines) != 1 || lines[0].TraceID != want {
			t.Errorf("%s is logged as %+v, want the trace id %q", resp.what, lines, want)
		}
	}
	for sent, want := range tests {
		resp := p.do("GET", "/livez", nil, "traceparent", sent).want(200)
		wantTrace(resp, want)
	}
	// two headers are invalid
	request := p.request(t.Context(), "GET", "/livez", nil)
	request.Header["Traceparent"] = []string{"00-" + trace + "-" + parent + "-01", "00-" + trace + "-" + parent + "-01"}
	resp := p.sent(request, nil)
	wantTrace(resp, "")
	// errors have the trace id too
	failed := p.do("GET", "/pets", nil, "traceparent", "00-"+trace+"-"+parent+"-01").wantError(401, "missing_api_key")
	wantTrace(failed, trace)
}

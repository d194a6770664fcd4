package api_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"petstore/internal/api"
	"petstore/internal/auth"
)

// allow gives the Allow field that the document asks for, by path.
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

// filled replaces the parameters of a path.
func filled(path, value string) string {
	return regexp.MustCompile(`{\w+}`).ReplaceAllLiteralString(path, value)
}

func TestOptions(t *testing.T) {
	t.Parallel()
	p := start(t).as("")
	for path, want := range allow() {
		answer := p.do("OPTIONS", filled(path, "1")+"?x", nil, "Accept", "text/html").want(204)
		if got := answer.header.Get("Allow"); got != want || len(answer.body) > 0 {
			t.Errorf("OPTIONS %s: Allow %q, want %q; body %q", path, got, want, answer.body)
		}
	}
	p.do("OPTIONS", "/nothing", nil).wantError(404, "route_not_found")
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
			for _, value := range []string{"1", "0", "x%2Fy", "%00", "summaryx"} {
				answer := p.as("").do(method, filled(path, value), nil).wantError(405, "method_not_allowed")
				if got := answer.header.Get("Allow"); got != want {
					t.Errorf("%s %s: Allow %q, want %q", method, path, got, want)
				}
			}
		}
	}
}

// TestLiteralPathWins: /store/inventory/summary is never an id, whatever the method.
func TestLiteralPathWins(t *testing.T) {
	t.Parallel()
	p := start(t)
	p.get("/store/inventory/summary").want(200)
	for _, method := range []string{"PUT", "PATCH", "POST", "DELETE", "FOO"} {
		answer := p.do(method, "/store/inventory/summary", object{"quantity": 1}).wantError(405, "method_not_allowed")
		if got := answer.header.Get("Allow"); got != "GET, HEAD, OPTIONS" {
			t.Errorf("%s: Allow %q", method, got)
		}
	}
	// a segment is matched before it is decoded
	p.put("/store/inventory/summar%79", object{"quantity": 1}).wantViolations("invalid_parameter", "petId invalid_format")
}

func TestRouteNotFound(t *testing.T) {
	t.Parallel()
	p := start(t)
	for _, path := range []string{
		"//", "/pets/", "//pets", "/pets//", "/pets//1", "/pets/1/", "/pets/1//", "/pets/1/orders", "/Pets", "/PETS/1", "/pet",
		"/%70ets", "/pets%2F1", "/pets%2f", "/./pets", "/../pets", "/pets/../pets", "/pets;v=1", "/pets.json",
		"/store", "/store/", "/store/orders/", "/store//orders", "/store%2Forders", "/store/inventory/summary/", "/store/inventory/summary/1",
		"/store/inventory//", "/messages/", "/livez/", "/readyz/x", "/openapi.yml", "/openapi.json/", "/metrics", "/debug/pprof/", "/v1/pets", "/*", "/:petId",
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
		if got := p.do(method, "/", nil).want(302).header.Get("Location"); got != "/openapi.json" {
			t.Errorf("%s / redirects to %q", method, got)
		}
	}
}

// TestHead: HEAD answers as GET does, without the body.
func TestHead(t *testing.T) {
	t.Parallel()
	p := start(t)
	petID := p.newPet("one", 5)
	orderID := p.newOrder(petID, 1)
	messageID := decode[message](p.post("/messages", object{"message": "hello"}).want(202)).ID
	for i := range 3 {
		p.newCategory(fmt.Sprint(i))
	}
	for _, target := range []string{
		"/pets", "/categories", "/categories?limit=2&sort=-name", "/store/orders", "/store/inventory", "/store/inventory/summary", "/messages",
		fmt.Sprintf("/pets/%d", petID), "/categories/1", fmt.Sprintf("/store/orders/%d", orderID), fmt.Sprintf("/store/inventory/%d", petID), "/messages/" + messageID,
		"/openapi.json", "/openapi.yaml", "/livez", "/readyz", "/",
		"/nothing", "/pets/9999", "/pets/0", "/pets?x", "/pets?cursor=x",
	} {
		get, head := p.get(target), p.do("HEAD", target, nil)
		if head.status != get.status || len(head.body) > 0 {
			t.Errorf("HEAD %s: %d and %d bytes, GET: %d", target, head.status, len(head.body), get.status)
		}
		for _, header := range []http.Header{get.header, head.header} {
			header.Del("X-Request-Id")
			header.Del("Date")
			if target == "/" {
				header.Del("Content-Length") // net/http writes the text of a redirect for GET alone
			}
		}
		if diff := cmp.Diff(get.header, head.header); diff != "" {
			t.Errorf("HEAD %s: header (-GET +HEAD):\n%s", target, diff)
		}
	}
	if status := p.as("").do("HEAD", "/pets", nil).status; status != 401 {
		t.Errorf("HEAD without a key: %d", status)
	}
}

func TestHeadersOfEveryAnswer(t *testing.T) {
	t.Parallel()
	p := start(t)
	for _, answer := range []*response{
		p.get("/pets"), p.get("/pets/1"), p.get("/nothing"), p.get("/"), p.get("/livez"), p.get("/openapi.yaml"),
		p.as("").get("/pets"), p.post("/messages", `{"message":"x"}`), p.do("OPTIONS", "/pets", nil), p.do("FOO", "/pets", nil), p.post("/pets", "{"),
	} {
		for name, want := range map[string]string{"API-Version": "1.0.0", "X-Content-Type-Options": "nosniff"} {
			if got := answer.header.Values(name); len(got) != 1 || got[0] != want {
				t.Errorf("%s: %s %q, want %q", answer.what, name, got, want)
			}
		}
		if len(answer.header.Values("X-Request-Id")) != 1 {
			t.Errorf("%s: no X-Request-Id", answer.what)
		}
	}
}

func TestRequestID(t *testing.T) {
	t.Parallel()
	p := start(t)
	for _, id := range []string{"1", "a.B_c-9", strings.Repeat("x", 128), "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01"} {
		if got := p.do("GET", "/pets/1", nil, "X-Request-Id", id).wantError(404, "pet_not_found").error().RequestID; got != id {
			t.Errorf("the id %q was not taken over, but made %q", id, got)
		}
	}
	made := map[string]bool{}
	for _, id := range []string{"", " ", "a b", "a\tb", "é", "a/b", "a,b", `{"level":"error"}`, strings.Repeat("x", 129), "${jndi:ldap://x}"} {
		got := p.do("GET", "/pets/1", nil, "X-Request-Id", id).wantError(404, "pet_not_found").error().RequestID
		if got == id || made[got] || !regexp.MustCompile(`^[A-Za-z0-9._-]{16,128}$`).MatchString(got) {
			t.Errorf("for %q, the id %q was made", id, got)
		}
		made[got] = true
	}
}

// logLine is what is logged about a request.
type logLine struct {
	Level, Msg, Method, Route, Key, Error string
	Status                                int
	DurationMS                            *float64 `json:"duration_ms"`
	RequestID                             string   `json:"request_id"`
}

// logged gives the log lines of the request with this id.
func (p *petstore) logged(requestID string) []logLine {
	p.t.Helper()
	var found []logLine
	for text := range strings.Lines(p.log.String()) {
		var line logLine
		if err := json.Unmarshal([]byte(text), &line); err != nil {
			p.t.Fatalf("%v: %s", err, text)
		}
		if line.RequestID == requestID {
			found = append(found, line)
		}
	}
	return found
}

// TestLog: one line tells of each request, and no key is in it.
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
		{"GET", "/pets/77?x=secret", p.key, nil, logLine{Level: "INFO", Route: "/pets/:petId", Status: 400, Key: prefix}},
		{"GET", "/pets/77", p.key, nil, logLine{Level: "INFO", Route: "/pets/:petId", Status: 404, Key: prefix}},
		{"HEAD", "/pets", p.key, nil, logLine{Level: "INFO", Route: "/pets", Status: 200, Key: prefix}},
		{"POST", "/messages", p.key, object{"message": "secret"}, logLine{Level: "INFO", Route: "/messages", Status: 202, Key: prefix}},
		{"GET", "/store/inventory/summary", "", nil, logLine{Level: "INFO", Route: "/store/inventory/summary", Status: 401}},
		{"GET", "/pets", wellFormed, nil, logLine{Level: "INFO", Route: "/pets", Status: 401}},
		{"GET", "/pets", "secret", nil, logLine{Level: "INFO", Route: "/pets", Status: 401}},
		{"GET", "/secret/path", p.key, nil, logLine{Level: "INFO", Status: 404}},
		{"OPTIONS", "/pets", "", nil, logLine{Level: "INFO", Route: "/pets", Status: 204}},
		{"GET", "/livez", "", nil, logLine{Level: "INFO", Route: "/livez", Status: 200}},
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
		if got.DurationMS == nil || *got.DurationMS < 0 {
			t.Errorf("%s %s: no duration is logged", test.method, test.target)
		}
		got.DurationMS = nil
		test.want.Msg, test.want.Method, test.want.RequestID = "request", test.method, id
		if diff := cmp.Diff(test.want, got); diff != "" {
			t.Errorf("%s %s: log line (-want +got):\n%s", test.method, test.target, diff)
		}
	}
	for _, secret := range []string{p.key[len(prefix):], wellFormed[len(prefix):], "secret", "Bearer"} {
		if strings.Contains(p.log.String(), secret) {
			t.Errorf("%q is in the log:\n%s", secret, p.log)
		}
	}
}

// TestPanic: a mistake of ours is a 500 that tells the client nothing, and the
// log everything. The mistake here is a server without a verifier.
func TestPanic(t *testing.T) {
	t.Parallel()
	p := start(t)
	broken := p.with(func(o *api.Options) { o.Verifier = nil })
	answer := broken.do("GET", "/pets", nil, "X-Request-Id", "panicked").wantError(500, "internal_error")
	want := errorBody{Code: "internal_error", Message: "The server failed. Quote the request id when you report it.", Status: 500, RequestID: "panicked"}
	if diff := cmp.Diff(want, answer.error()); diff != "" {
		t.Errorf("the Error (-want +got):\n%s", diff)
	}
	lines := p.logged("panicked")
	if len(lines) != 1 || lines[0].Level != "ERROR" || lines[0].Status != 500 ||
		!strings.Contains(lines[0].Error, "nil pointer dereference") || !strings.Contains(lines[0].Error, "verifier.go") {
		t.Errorf("the log lines do not say what happened: %+v", lines)
	}
	broken.get("/livez").want(200)
}

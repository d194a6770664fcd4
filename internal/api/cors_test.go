package api_test

import (
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"petstore/internal/api"
)

const (
	exposedHeaders = "ETag, Link, Location, X-Total-Count, Preference-Applied, Idempotent-Replayed, Retry-After, RateLimit, RateLimit-Policy, " +
		"WWW-Authenticate, Allow, Deprecation, Sunset, API-Version, X-Request-Id, Petstore-Fault, Petstore-Consistency"
	allowedHeaders = "Authorization, Content-Type, Idempotency-Key, If-Match, If-None-Match, Last-Event-ID, Prefer, Cache-Control, Petstore-Observer, X-Request-Id, traceparent, tracestate, baggage"
)

// corsOf returns the CORS headers of a response.
func corsOf(resp *response) map[string]string {
	fields := map[string]string{}
	for name, values := range resp.header {
		if strings.HasPrefix(name, "Access-Control-") {
			fields[name] = strings.Join(values, "; ")
		}
	}
	if slices.Contains(strings.Split(strings.Join(resp.header.Values("Vary"), ", "), ", "), "Origin") {
		fields["Vary"] = "Origin"
	}
	return fields
}

// TestCORS: every response to a request of a page of an allowed origin says that the page
// may read it. Other responses have no header of CORS, but caches tell them apart.
func TestCORS(t *testing.T) {
	t.Parallel()
	all := start(t)
	named := func(o *api.Options) { o.CORSOrigins = []string{"https://shop.example", "http://localhost:3000"} }
	some := all.with(named)
	broken := map[*petstore]*petstore{
		all:  all.with(func(o *api.Options) { o.Verifier = nil }),
		some: all.with(func(o *api.Options) { named(o); o.Verifier = nil }),
	}
	toNone := map[string]string{"Vary": "Origin"}
	to := func(origin string) map[string]string {
		return map[string]string{"Access-Control-Allow-Origin": origin, "Access-Control-Expose-Headers": exposedHeaders, "Vary": "Origin"}
	}
	for _, test := range []struct {
		p      *petstore
		origin string
		want   map[string]string
	}{
		{all, "", toNone},
		{all, "https://shop.example", to("*")},
		{all, "null", to("*")},
		{some, "https://shop.example", to("https://shop.example")},
		{some, "http://localhost:3000", to("http://localhost:3000")},
		{some, "", toNone},
		{some, "null", toNone},
		{some, "*", toNone},
		{some, "http://shop.example", toNone},
		{some, "https://shop.example:8443", toNone},
		{some, "https://shop.example.evil.example", toNone},
		{some, "https://evil.example/https://shop.example", toNone},
		{some, "https://shop.example, https://evil.example", toNone},
		{some, "HTTPS://SHOP.EXAMPLE", toNone},
	} {
		p := test.p
		for _, resp := range []*response{
			p.do("GET", "/pets", nil, "Origin", test.origin).want(200),
			p.do("HEAD", "/pets", nil, "Origin", test.origin).want(200),
			p.do("GET", "/openapi.json", nil, "Origin", test.origin).want(200),
			p.do("GET", "/openapi.json", nil, "Origin", test.origin, "If-None-Match", "*").want(304),
			p.do("GET", "/livez", nil, "Origin", test.origin).want(200),
			p.do("GET", "/", nil, "Origin", test.origin).want(302),
			p.do("POST", "/messages", object{"message": "hello"}, "Origin", test.origin).want(202),
			p.do("DELETE", "/pets/4711", nil, "Origin", test.origin).want(404),
			p.as("").do("GET", "/pets", nil, "Origin", test.origin).want(401),
			p.do("GET", "/nothing", nil, "Origin", test.origin).want(404),
			p.do("FOO", "/pets", nil, "Origin", test.origin).want(405),
			p.do("OPTIONS", "/nothing", nil, "Origin", test.origin, "Access-Control-Request-Method", "GET").want(404),
			p.do("OPTIONS", "/pets", nil, "Origin", test.origin).want(204),
			broken[p].do("GET", "/pets", nil, "Origin", test.origin).want(500),
		} {
			if diff := cmp.Diff(test.want, corsOf(resp)); diff != "" {
				t.Errorf("%s from %q: %d (-want +got):\n%s", resp.what, test.origin, resp.status, diff)
			}
		}
	}
	// Vary has both reasons in one header
	if vary := some.get("/pets").header.Values("Vary"); strings.Join(vary, ", ") != "Origin, Accept-Encoding" {
		t.Errorf("Vary %q", vary)
	}
}

// TestPreflight: a preflight response says which methods and headers a page may
// send to a path, and needs no key.
func TestPreflight(t *testing.T) {
	t.Parallel()
	p := start(t).as("")
	for path, methods := range allow() {
		resp := p.do("OPTIONS", filled(path, "1"), nil, "Origin", "https://shop.example", "Access-Control-Request-Method", "DELETE", "Access-Control-Request-Headers", "authorization").want(204)
		want := map[string]string{
			"Access-Control-Allow-Origin":   "*",
			"Access-Control-Expose-Headers": exposedHeaders,
			"Access-Control-Allow-Methods":  methods,
			"Access-Control-Allow-Headers":  allowedHeaders,
			"Access-Control-Max-Age":        "7200",
			"Vary":                          "Origin",
		}
		if diff := cmp.Diff(want, corsOf(resp)); diff != "" || resp.header.Get("Allow") != methods {
			t.Errorf("a preflight of %s: Allow %q, (-want +got):\n%s", path, resp.header.Get("Allow"), diff)
		}
	}
	// an incomplete preflight is an ordinary OPTIONS request
	some := p.with(func(o *api.Options) { o.CORSOrigins = []string{"https://shop.example"} })
	for _, resp := range []*response{
		p.do("OPTIONS", "/pets", nil),
		p.do("OPTIONS", "/pets", nil, "Origin", "https://shop.example"),
		p.do("OPTIONS", "/pets", nil, "Access-Control-Request-Method", "GET"),
		p.do("GET", "/livez", nil, "Origin", "https://shop.example", "Access-Control-Request-Method", "GET"),
		some.do("OPTIONS", "/pets", nil, "Origin", "https://evil.example", "Access-Control-Request-Method", "GET"),
	} {
		if methods := resp.header.Get("Access-Control-Allow-Methods"); methods != "" {
			t.Errorf("%s: %d allows %s", resp.what, resp.status, methods)
		}
	}
	allowed := some.do("OPTIONS", "/pets", nil, "Origin", "https://shop.example", "Access-Control-Request-Method", "GET").want(204)
	if got := allowed.header.Get("Access-Control-Allow-Methods"); got != "GET, HEAD, OPTIONS, POST" {
		t.Errorf("an allowed origin may use %q", got)
	}
}

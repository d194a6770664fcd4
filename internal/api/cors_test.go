package api_test

import (
	"slices"
	"strings"
	"testing"

	"petstore/internal/api"
	"petstore/internal/tools/need"
)

const (
	exposedHeaders = "ETag, Link, Location, X-Total-Count, Preference-Applied, Idempotent-Replayed, Retry-After, RateLimit, RateLimit-Policy, " +
		"WWW-Authenticate, Allow, Deprecation, Sunset, API-Version, X-Request-Id, Petstore-Fault, Petstore-Consistency"
	allowedHeaders = "Authorization, Content-Type, Idempotency-Key, If-Match, If-None-Match, Last-Event-ID, Prefer, Cache-Control, Petstore-Observer, X-Request-Id, traceparent, tracestate, baggage"
)

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

// TestCORS: every response to a request of a page says that the page may read it. Other
// responses have no header of CORS, but caches tell them apart.
func TestCORS(t *testing.T) {
	t.Parallel()
	p := start(t)
	broken := p.with(func(o *api.Options) { o.Verifier = nil })
	toAll := map[string]string{"Access-Control-Allow-Origin": "*", "Access-Control-Expose-Headers": exposedHeaders, "Vary": "Origin"}
	for origin, want := range map[string]map[string]string{"": {"Vary": "Origin"}, "https://shop.example": toAll, "null": toAll} {
		for _, resp := range []*response{
			p.do("GET", "/pets", nil, "Origin", origin).want(200),
			p.do("HEAD", "/pets", nil, "Origin", origin).want(200),
			p.do("GET", "/openapi.json", nil, "Origin", origin).want(200),
			p.do("GET", "/openapi.json", nil, "Origin", origin, "If-None-Match", "*").want(304),
			p.do("GET", "/livez", nil, "Origin", origin).want(200),
			p.do("GET", "/", nil, "Origin", origin).want(302),
			p.do("POST", "/messages", object{"message": "hello"}, "Origin", origin).want(202),
			p.do("DELETE", "/pets/4711", nil, "Origin", origin).want(404),
			p.as("").do("GET", "/pets", nil, "Origin", origin).want(401),
			p.do("GET", "/nothing", nil, "Origin", origin).want(404),
			p.do("FOO", "/pets", nil, "Origin", origin).want(405),
			p.do("OPTIONS", "/nothing", nil, "Origin", origin, "Access-Control-Request-Headers", "authorization").want(404),
			p.do("OPTIONS", "/pets", nil, "Origin", origin).want(204),
			broken.do("GET", "/pets", nil, "Origin", origin).want(500),
		} {
			need.Same(t, want, corsOf(resp), "%s from %q: %d", resp.what, origin, resp.status)
		}
	}
	// Vary has both reasons in one header
	need.Same(t, []string{"Origin, Accept-Encoding"}, p.get("/pets").header.Values("Vary"), "Vary")
}

// TestPreflight: a preflight response says which methods and headers a page may
// send to a path, and needs no key. Any OPTIONS request ignores an invalid key.
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
		need.Same(t, want, corsOf(resp.wantHeader("Allow", methods)), "a preflight of %s", path)
		p.as("x").do("OPTIONS", filled(path, "1")+"?x", nil, "Accept", "text/html").want(204).wantHeader("Allow", methods)
	}
	unknown := p.do("OPTIONS", "/nothing", nil, "Origin", "https://shop.example", "Access-Control-Request-Method", "PUT").want(204)
	unknown.wantHeader("Access-Control-Allow-Methods", "DELETE, GET, HEAD, OPTIONS, PATCH, POST, PUT").wantHeader("Allow", "")
	// an incomplete preflight is an ordinary OPTIONS request
	for _, resp := range []*response{
		p.do("OPTIONS", "/pets", nil),
		p.do("OPTIONS", "/pets", nil, "Origin", "https://shop.example"),
		p.do("OPTIONS", "/pets", nil, "Access-Control-Request-Method", "GET"),
		p.do("GET", "/livez", nil, "Origin", "https://shop.example", "Access-Control-Request-Method", "GET"),
	} {
		resp.wantHeader("Access-Control-Allow-Methods", "")
	}
}

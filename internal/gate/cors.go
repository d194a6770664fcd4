package gate

import "net/http"

// Headers that pages of other origins may send and read. The guide to requests lists them
// under "Browsers".
const (
	corsAllowedHeaders = "Authorization, Content-Type, Idempotency-Key, If-Match, If-None-Match, Last-Event-ID, Prefer, Cache-Control, Petstore-Observer, X-Request-Id, traceparent, tracestate, baggage"
	corsExposedHeaders = "ETag, Link, Location, X-Total-Count, Preference-Applied, Idempotent-Replayed, Retry-After, RateLimit, RateLimit-Policy, WWW-Authenticate, Allow, Deprecation, Sunset, API-Version, X-Request-Id, Petstore-Fault, Petstore-Consistency"
	corsMaxAge         = "7200" // seconds, the maximum in Chromium
)

// The values of Vary. Every response depends on Origin, because only a request with that
// header gets the headers of CORS. A cache must not give the response to another request to
// a page. Lists and documents have two content codings, and events two media types.
const (
	varyOfAll    = "Origin"
	varyOfCoded  = varyOfAll + ", Accept-Encoding"
	varyOfStream = varyOfAll + ", Accept"
	varyOfEvents = varyOfStream + ", Accept-Encoding"
)

// corsHeaders let a page of any origin read a response (https://fetch.spec.whatwg.org/#http-cors-protocol).
// They never allow credentials: a page sends the API key in a header that it sets itself.
// Requests share them: do not modify.
var corsHeaders = http.Header{"Access-Control-Allow-Origin": {"*"}, "Access-Control-Expose-Headers": {corsExposedHeaders}}

// preflightHeaders returns the headers of the response to a preflight, besides Allow.
func preflightHeaders(allow string) http.Header {
	return http.Header{
		"Access-Control-Allow-Methods": {allow},
		"Access-Control-Allow-Headers": {corsAllowedHeaders},
		"Access-Control-Max-Age":       {corsMaxAge},
	}
}

// isPreflight reports whether an OPTIONS request is a preflight.
func isPreflight(r *http.Request) bool {
	return r.Header.Get("Origin") != "" && r.Header.Get("Access-Control-Request-Method") != ""
}

package gate

import (
	"net/http"
)

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

// corsHeaders returns a function for the headers that let a page of an origin read a response
// (https://fetch.spec.whatwg.org/#http-cors-protocol). The function returns nil if the
// request has no Origin, or one that is not allowed. The headers never allow credentials: a
// page sends the API key in a header that it sets itself.
func corsHeaders(origins []string) func(origin string) http.Header {
	allow := func(origin string) http.Header {
		return http.Header{"Access-Control-Allow-Origin": {origin}, "Access-Control-Expose-Headers": {corsExposedHeaders}}
	}
	byOrigin := map[string]http.Header{}
	for _, origin := range origins {
		byOrigin[origin] = allow(origin)
	}
	all := allow("*")
	return func(origin string) http.Header {
		if len(origins) == 0 && origin != "" {
			return all
		}
		return byOrigin[origin]
	}
}

// preflightHeaders returns the headers of the response to a preflight, besides Allow.
func preflightHeaders(allow string) http.Header {
	return http.Header{
		"Access-Control-Allow-Methods": {allow},
		"Access-Control-Allow-Headers": {corsAllowedHeaders},
		"Access-Control-Max-Age":       {corsMaxAge},
	}
}

// isPreflight reports whether an OPTIONS request is a preflight from an allowed origin.
func isPreflight(r *http.Request, response http.Header) bool {
	return r.Header.Get("Origin") != "" && r.Header.Get("Access-Control-Request-Method") != "" &&
		response.Get("Access-Control-Allow-Origin") != ""
}

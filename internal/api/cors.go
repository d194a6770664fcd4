package api

import (
	"net/http"
)

// Headers that pages of other origins may send and read. The guide to requests lists them
// under "Browsers".
const (
	corsAllowedHeaders = "Authorization, Content-Type, Idempotency-Key, If-Match, If-None-Match, Last-Event-ID, Prefer, Cache-Control, X-Request-Id, traceparent, tracestate, baggage"
	corsExposedHeaders = "ETag, Link, Location, X-Total-Count, Preference-Applied, Idempotent-Replayed, Retry-After, RateLimit, RateLimit-Policy, WWW-Authenticate, Allow, Deprecation, Sunset, API-Version, X-Request-Id, Petstore-Fault, Petstore-Consistency"
	corsMaxAge         = "7200" // seconds, the maximum in Chromium
)

// corsHeaders returns the headers that let pages of other origins read responses
// (https://fetch.spec.whatwg.org/#http-cors-protocol): those of every response, and
// those of responses to each allowed origin. It never allows credentials: a page
// sends the API key in a header that it sets itself.
func corsHeaders(origins []string) (every http.Header, byOrigin map[string]http.Header) {
	allow := func(origin string) http.Header {
		return http.Header{"Access-Control-Allow-Origin": {origin}, "Access-Control-Expose-Headers": {corsExposedHeaders}}
	}
	if len(origins) == 0 {
		return allow("*"), nil
	}
	byOrigin = map[string]http.Header{}
	for _, origin := range origins {
		byOrigin[origin] = allow(origin)
	}
	return http.Header{"Vary": {"Origin"}}, byOrigin
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

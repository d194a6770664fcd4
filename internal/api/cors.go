package api

import (
	"net/http"
)

// What pages of other origins may send and read (section 7 of the contract).
const (
	corsAllowedHeaders = "Authorization, Content-Type, Idempotency-Key, If-Match, If-None-Match, Prefer, Cache-Control, X-Request-Id, traceparent, tracestate, baggage"
	corsExposedHeaders = "ETag, Link, Location, X-Total-Count, Preference-Applied, Idempotent-Replayed, Retry-After, RateLimit, RateLimit-Policy, WWW-Authenticate, Allow, Deprecation, Sunset, API-Version, X-Request-Id"
	corsMaxAge         = "7200" // seconds, as long as browsers go along with
)

// corsFields gives the header fields that let pages of other origins read the
// answers (https://fetch.spec.whatwg.org/#http-cors-protocol): those of every
// answer, and those of an answer to one of the origins. Keys go in a field that
// the page itself must set, so no origin is allowed credentials.
func corsFields(origins []string) (every http.Header, byOrigin map[string]http.Header) {
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

// preflightFields gives what a preflight of a path is answered beside its Allow field.
func preflightFields(allow string) http.Header {
	return http.Header{
		"Access-Control-Allow-Methods": {allow},
		"Access-Control-Allow-Headers": {corsAllowedHeaders},
		"Access-Control-Max-Age":       {corsMaxAge},
	}
}

// isPreflight reports whether an OPTIONS asks for a page of an origin that may call us.
func isPreflight(r *http.Request, answer http.Header) bool {
	return r.Header.Get("Origin") != "" && r.Header.Get("Access-Control-Request-Method") != "" &&
		answer.Get("Access-Control-Allow-Origin") != ""
}

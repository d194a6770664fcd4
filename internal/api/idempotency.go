package api

import (
	"crypto/sha256"
	"net/http"
	"strings"

	"petstore/internal/httpjson"
)

const maxIdempotencyKey = 255 // bytes

// idempotencyKey returns the Idempotency-Key of a POST, or "" if it has none. A request
// whose response has a secret must not have one. The error is
// [errInvalidIdempotencyKey].
func idempotencyKey(r *http.Request, secret bool) (string, error) {
	fields := r.Header.Values("Idempotency-Key")
	if len(fields) == 0 {
		return "", nil
	}
	if secret {
		return "", errInvalidIdempotencyKey.WithViolations([]httpjson.Violation{{
			Header: "Idempotency-Key", Code: "not_allowed", Message: "`Idempotency-Key` is not allowed, because the server never stores a response with a secret. Remove the header.",
		}})
	}
	key := fields[0]
	invisible := func(r rune) bool { return r <= ' ' || r > '~' }
	if len(fields) > 1 || key == "" || len(key) > maxIdempotencyKey || strings.ContainsFunc(key, invisible) {
		return "", errInvalidIdempotencyKey.WithViolations([]httpjson.Violation{{
			Header: "Idempotency-Key", Code: "invalid_format", Message: "`Idempotency-Key` must have 1 to 255 visible ASCII characters and appear once.",
		}})
	}
	return key, nil
}

// fingerprint distinguishes requests with the same key by their path and body.
func fingerprint(r *http.Request, body []byte) []byte {
	hash := sha256.New()
	hash.Write([]byte(r.URL.EscapedPath() + "\n"))
	hash.Write(body)
	return hash.Sum(nil)
}

package gate

import (
	"context"
	"errors"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"

	"petstore/internal/admission"
	"petstore/internal/httpjson"
	"petstore/internal/postgres"
	"petstore/internal/telemetry"
)

// The errors of the gate besides the errors of [httpjson], by status.
var (
	ErrInvalidConsistency = &httpjson.Error{Status: 400, Code: "invalid_consistency", Message: "The preference consistency in the header Prefer is invalid. Correct the header as `errors` says.", Remedy: "Send `Prefer: consistency=` with the latest `Petstore-Consistency` of a response from this API, or with `eventual`. A token from before the restore of a backup is invalid. Without the preference, the server reads the current state."}

	ErrMissingAPIKey     = &httpjson.Error{Status: 401, Code: "missing_api_key", Message: "The API key is missing. Send it as Authorization: Bearer <API_KEY>.", Header: [2]string{"WWW-Authenticate", `Bearer realm="petstore"`}, Remedy: "Add the header `Authorization: Bearer <API_KEY>`. Check that the variable that holds the key is set where the program runs."}
	ErrInvalidAPIKey     = &httpjson.Error{Status: 401, Code: "invalid_api_key", Message: "The API key is malformed, unknown, revoked or expired. Send a working key.", Header: [2]string{"WWW-Authenticate", `Bearer realm="petstore", error="invalid_token"`}, Remedy: "Check the form of the key: `petstore_` and 36 letters and digits, without quotes or line breaks. If the form is right, the key is unknown, revoked or expired. Get a new one."}
	ErrInsufficientScope = &httpjson.Error{Status: 403, Code: "insufficient_scope", Message: "The API key's scope does not include this operation. Use a key of a larger scope.", Header: [2]string{"WWW-Authenticate", `Bearer realm="petstore", error="insufficient_scope"`}, Remedy: "Use a key of a larger scope. GET needs `read`, and changes need `write`. Webhooks, API keys, sandboxes and samples need `admin`."}

	ErrRouteNotFound    = &httpjson.Error{Status: 404, Code: "route_not_found", Message: "This path does not exist. Check its spelling.", Remedy: "Check the path for misspelled words, capitals, and a trailing or double slash."}
	ErrMethodNotAllowed = &httpjson.Error{Status: 405, Code: "method_not_allowed", Message: "This path does not support this method. Use a method that the header Allow lists.", Remedy: "Use one of the methods that the header `Allow` lists."}

	ErrOperationSunset = &httpjson.Error{Status: 410, Code: "operation_sunset", Message: "This operation no longer exists. Use the successor that the header Link names.", Remedy: "Use the successor in the header `Link` (`successor-version`). The reference says how they differ."}

	ErrRateLimited          = &httpjson.Error{Status: 429, Code: "rate_limited", Message: "This API key has sent too many requests. Wait as long as Retry-After says.", Remedy: "Wait as many seconds as `Retry-After` says and a random time of up to a second, and send fewer requests at once. The header `RateLimit` has the number of requests left to the key and to its account. The keys of an account and of its sandboxes share the second number. With the key of a sandbox, a third number is for all sandboxes of the account. An address that sends too many requests without a valid key gets this error too. Correct the key in that case."}
	errAccountRateLimited   = ErrRateLimited.WithMessage("The API keys of your account have sent too many requests together. Wait as long as Retry-After says.")
	errSandboxesRateLimited = ErrRateLimited.WithMessage("The sandboxes of your account have sent too many requests together. Wait as long as Retry-After says.")
	errTooManyFailures      = &httpjson.Error{Status: 429, Code: "rate_limited", Message: "Too many requests from this address had no valid API key. Send a valid key, or wait as long as Retry-After says."}

	ErrTooManyConcurrent = &httpjson.Error{Status: 429, Code: "too_many_concurrent_requests", Message: "Your account has too many requests, streams or bytes in progress. Wait until it has fewer.", Header: [2]string{"Retry-After", "1"}, Remedy: "Wait as many seconds as `Retry-After` says and a random time of up to a second. Send fewer requests at the same time. An account may have 640 requests in progress, 128 bodies in upload, 200 streams and 200 waiting requests. It may have 128 delayed requests and 8 MiB of unread lists and recorded requests. Its keys and sandboxes share them. It may have one exact count, report or other expensive query, and one new sandbox, new sample, reset or replay, at a time."}

	ErrInternal = &httpjson.Error{Status: 500, Code: "internal_error", Message: "The server failed. Quote the request id when you report it.", Remedy: "Retry later. If the error persists, report it with the `requestId`, which is also in the server's log."}
	// ErrUnavailable has a constant Retry-After, because nobody knows when the cause ends.
	ErrUnavailable = &httpjson.Error{Status: 503, Code: "unavailable", Message: "The service is unavailable at the moment. Retry after the time in Retry-After.", Header: [2]string{"Retry-After", "1"}, Remedy: "Wait as many seconds as `Retry-After` says and a random time of up to a second, and retry. A POST with an `Idempotency-Key` is safe to retry."}
	errOverloaded  = ErrUnavailable.WithMessage("The service has too many requests at the moment. Retry after the time in Retry-After.")
)

// errorResponse returns the error response for any error of a handler. Any error
// except an [httpjson.Error] comes from the database or is a bug, and its text is
// not sent.
func errorResponse(err error) *httpjson.Error {
	response, ok := errors.AsType[*httpjson.Error](err)
	refused, isRefused := errors.AsType[*admission.RefusedError](err)
	switch {
	case ok:
		return response
	case isRefused && errors.Is(err, admission.ErrShare):
		return ErrTooManyConcurrent.WithRetryAfter(max(refused.RetryAfter, time.Second)).
			WithMessage("Your account has too many " + refused.Resource + ". Wait until it has fewer.")
	case isRefused:
		return errOverloaded.WithRetryAfter(max(refused.RetryAfter, time.Second))
	case postgres.Unavailable(err), errors.Is(err, context.Canceled):
		return ErrUnavailable
	default:
		return ErrInternal
	}
}

// writeError sends the error response for err. Nothing else writes an error. It keeps
// the cause of a 5xx for the log line of the request.
func (g *Gate) writeError(c *gin.Context, err error) {
	response, state := errorResponse(err), requestOf(c)
	if response == ErrInternal && postgres.FromServer(err) {
		// A statement that does not fit the schema may succeed after the migration or the upgrade.
		if schema, checkErr := g.checkSchema(c.Request.Context()); checkErr == nil && schema.fit != postgres.SchemaFits {
			response = ErrUnavailable
		}
	}
	if response.Status >= http.StatusInternalServerError && !errors.Is(err, response) {
		state.cause = err
	}
	state.code = response.Code
	if response.Code == ErrTooManyConcurrent.Code {
		state.limitReached = telemetry.ConcurrencyLimit
	}
	if !state.isKnown() {
		limitDrain(c, 0)
		g.capture(c) // the record may have it although the error comes before the check of the key
	}
	response.Write(c.Writer, state.id)
}

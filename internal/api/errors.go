package api

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"time"

	"github.com/gin-gonic/gin"

	"petstore/internal/docs"
	"petstore/internal/postgres"
)

// problem is an answer that is not a success: the Error object of section 8 of
// the contract. Handlers return it as their error; fail writes it.
type problem struct {
	status  int
	code    string
	message string // a sentence for a person
	// header is a header field that goes with the problem, and its value.
	header [2]string
	// violations are all that is wrong with an input.
	violations []violation
	// checks says what /readyz found.
	checks map[string]string
}

// violation is one thing that is wrong with an input. One of Pointer (RFC 6901,
// into the body), Parameter and Header says where.
type violation struct {
	Pointer   *string `json:"pointer,omitzero"`
	Parameter *string `json:"parameter,omitzero"` // may be empty, as in ?=1
	Header    string  `json:"header,omitzero"`
	Code      string  `json:"code"`
	Message   string  `json:"message"`
}

// Every problem that the API knows, in the order of section 8.
var (
	errInvalidJSON           = &problem{status: 400, code: "invalid_json", message: "The body is not valid JSON. Correct the body."}
	errValidationFailed      = &problem{status: 400, code: "validation_failed", message: "The body has invalid fields. Correct the fields listed in `errors`."}
	errUnsupportedContent    = &problem{status: 400, code: "unsupported_content_type", message: "The body must have the header Content-Type: application/json and no Content-Encoding. Correct the headers."}
	errInvalidParameter      = &problem{status: 400, code: "invalid_parameter", message: "The request has invalid parameters. Correct the parameters listed in `errors`."}
	errInvalidIdempotencyKey = &problem{status: 400, code: "invalid_idempotency_key", message: "The Idempotency-Key is invalid. Correct the header as `errors` says."}
	errInvalidCursor         = &problem{status: 400, code: "invalid_cursor", message: "The cursor is not valid for this list, filter and sort. Start again without cursor."}

	errMissingAPIKey     = &problem{status: 401, code: "missing_api_key", message: "The API key is missing. Send it as Authorization: Bearer <API_KEY>.", header: [2]string{"WWW-Authenticate", `Bearer realm="petstore"`}}
	errInvalidAPIKey     = &problem{status: 401, code: "invalid_api_key", message: "The API key is malformed, unknown, revoked or expired. Send a working key.", header: [2]string{"WWW-Authenticate", `Bearer realm="petstore", error="invalid_token"`}}
	errInsufficientScope = &problem{status: 403, code: "insufficient_scope", message: "The API key's scope does not include this operation. Use a key of a larger scope.", header: [2]string{"WWW-Authenticate", `Bearer realm="petstore", error="insufficient_scope"`}}

	errRouteNotFound     = &problem{status: 404, code: "route_not_found", message: "This path does not exist. Check its spelling."}
	errPetNotFound       = &problem{status: 404, code: "pet_not_found", message: "The pet does not exist. Check its id."}
	errCategoryNotFound  = &problem{status: 404, code: "category_not_found", message: "The category does not exist. Check its id."}
	errOrderNotFound     = &problem{status: 404, code: "order_not_found", message: "The order does not exist. Check its id."}
	errInventoryNotFound = &problem{status: 404, code: "inventory_not_found", message: "The pet does not exist, so it has no inventory entry. Check its id."}
	errMessageNotFound   = &problem{status: 404, code: "message_not_found", message: "Your account has no message with this id. Check the id and the account of your key."}
	errAPIKeyNotFound    = &problem{status: 404, code: "api_key_not_found", message: "Your account has no API key with this id, or the key is revoked. Check the id."}
	errMethodNotAllowed  = &problem{status: 405, code: "method_not_allowed", message: "This path does not support this method. Use a method that the header Allow lists."}
	errNotAcceptable     = &problem{status: 406, code: "not_acceptable", message: "The response is application/json, but the Accept header excludes it. Change or omit the header."}

	errCategoryExists    = &problem{status: 409, code: "category_exists", message: "Another category has this name, ignoring case. Choose another name."}
	errCategoryInUse     = &problem{status: 409, code: "category_in_use", message: "The category has pets, so it cannot be deleted. Move or delete them first."}
	errPetInUse          = &problem{status: 409, code: "pet_in_use", message: "The pet has orders, so it cannot be deleted. Set its status to sold instead."}
	errPetNotAvailable   = &problem{status: 409, code: "pet_not_available", message: "The pet is not available, so it cannot be ordered. Order an available pet."}
	errInsufficientStock = &problem{status: 409, code: "insufficient_stock", message: "The pet has fewer units in stock than ordered. Order fewer units."}
	errInvalidTransition = &problem{status: 409, code: "invalid_transition", message: "The resource cannot change to this state. Read it again and choose an allowed change."}
	errOrderComplete     = &problem{status: 409, code: "order_complete", message: "The order is complete, so it cannot be cancelled."}

	errLastAdminKey = &problem{status: 409, code: "last_admin_key", message: "This is the account's last live API key of scope admin. Create another one before you revoke it."}

	errIdempotencyInProgress = &problem{status: 409, code: "idempotency_in_progress", message: "Another request with this Idempotency-Key is still running. Retry after the time in Retry-After.", header: [2]string{"Retry-After", "1"}}

	errRequestTimeout = &problem{status: 408, code: "request_timeout", message: "The body did not arrive in time. Open a new connection and send the request again."}

	errOperationSunset = &problem{status: 410, code: "operation_sunset", message: "This operation no longer exists. Use the successor that the header Link names."}

	errPreconditionFailed   = &problem{status: 412, code: "precondition_failed", message: "The resource does not meet the If-Match or If-None-Match header, so the server changed nothing. Read it again and send its current tag."}
	errBodyTooLarge         = &problem{status: 413, code: "body_too_large", message: "The body is too large. Send a smaller body."}
	errUnknownCategory      = &problem{status: 422, code: "unknown_category", message: "The category in categoryId does not exist. Create it first or send the id of another one."}
	errIdempotencyKeyReused = &problem{status: 422, code: "idempotency_key_reused", message: "This Idempotency-Key was used for another path or body. Use a new key for each new request."}
	errUnknownPet           = &problem{status: 422, code: "unknown_pet", message: "The pet in petId does not exist. Create it first or send the id of another one."}

	errRateLimited     = &problem{status: 429, code: "rate_limited", message: "This API key has sent too many requests. Wait as long as Retry-After says."}
	errTooManyFailures = &problem{status: 429, code: "rate_limited", message: "Too many requests from this address had no valid API key. Send a valid key, or wait as long as Retry-After says."}

	errTooManyConcurrent = &problem{status: 429, code: "too_many_concurrent_requests", message: "Your account has too many requests in progress. Wait for their responses before you send more.", header: [2]string{"Retry-After", "1"}}

	errInternal    = &problem{status: 500, code: "internal_error", message: "The server failed. Quote the request id when you report it."}
	errUnavailable = &problem{status: 503, code: "unavailable", message: "The service is unavailable at the moment. Retry after the time in Retry-After.", header: [2]string{"Retry-After", "1"}}
	errOverloaded  = errUnavailable.saying("The service has too many requests at the moment. Retry after the time in Retry-After.")
)

// explained lists every problem with what a client can do about it, in the order
// of section 8: /docs/errors shows it.
func errorReference() []docs.Problem {
	var list []docs.Problem
	for _, one := range []struct {
		*problem
		remedy string
	}{
		{errInvalidJSON, "Check the body with a JSON parser. It must be UTF-8 without a byte order mark. It must be one value with unique field names and at most 32 levels."},
		{errValidationFailed, "Correct every field that `errors` lists. `pointer` names the field, and `code` and `message` say what is wrong. `errors` lists missing required fields too."},
		{errUnsupportedContent, "Send the header `Content-Type: application/json`, and do not compress the body. PATCH also accepts `application/merge-patch+json`."},
		{errInvalidParameter, "Correct every parameter that `errors` lists. Remove unknown and empty parameters. In a query, write the `+` of a time's offset as `%2B`."},
		{errInvalidIdempotencyKey, "Send the header once, with 1 to 255 visible ASCII characters, best a random UUID. Do not send it to an operation that returns a secret."},
		{errInvalidCursor, "Follow the URLs in the `Link` header instead of building them. Start again without `cursor` when you change the filters or the sort."},

		{errMissingAPIKey, "Add the header `Authorization: Bearer <API_KEY>`. Check that the variable that holds the key is set where the program runs."},
		{errInvalidAPIKey, "Check the form of the key: `petstore_` and 36 letters and digits, without quotes or line breaks. If the form is right, the key is unknown, revoked or expired. Get a new one."},
		{errInsufficientScope, "Use a key of a larger scope. GET needs `read`, changes need `write`, and API keys need `admin`."},

		{errRouteNotFound, "Check the path for misspelled words, capitals, and a trailing or double slash."},
		{errPetNotFound, "Find the id with `GET /pets`. Another client may have deleted the pet."},
		{errCategoryNotFound, "Find the id with `GET /categories`. Another client may have deleted the category."},
		{errOrderNotFound, "Find the id with `GET /store/orders`. A cancelled order no longer exists."},
		{errInventoryNotFound, "Find the pet's id with `GET /pets`. Every pet has an inventory entry from its creation to its deletion."},
		{errMessageNotFound, "Use the id from the response to `POST /messages`, with a key of the same account."},
		{errAPIKeyNotFound, "Find the id with `GET /account/api-keys`, with a key of the same account. You cannot rotate a revoked key. Create a new one."},
		{errMethodNotAllowed, "Use one of the methods that the header `Allow` lists."},
		{errNotAcceptable, "Send `Accept: application/json`, or no `Accept` at all."},

		{errCategoryExists, "Use the existing category (`GET /categories?name=`), or choose another name."},
		{errCategoryInUse, "Move its pets to another category with `PATCH /pets/{petId}`, or delete them. Then retry."},
		{errPetInUse, "Keep the pet and set its status to `sold`. You can delete a pet only after all its orders are cancelled."},
		{errPetNotAvailable, "Order another pet, or wait until this one is available. `PUT /store/inventory/{petId}` with more than 0 units makes it available."},
		{errInsufficientStock, "Order fewer units, or raise the stock with `PUT /store/inventory/{petId}`."},
		{errInvalidTransition, "Read the resource again and choose a change that its state allows. The reference has the rules under Stock and states."},
		{errOrderComplete, "Keep the order. Its units have left for good."},

		{errLastAdminKey, "Create another key of scope `admin` with `POST /account/api-keys`, and use it to revoke this one. The operator can revoke every key of an account with `petstore key revoke`."},

		{errIdempotencyInProgress, "Wait as many seconds as `Retry-After` says. Then send the same request again to get its response."},

		{errRequestTimeout, "Send the whole body within 10 seconds of the header. The server closes the connection. Open a new one and retry."},

		{errOperationSunset, "Use the successor in the header `Link` (`successor-version`). The reference says how they differ."},
		{errPreconditionFailed, "Read the resource again, decide again, and send the change with the new tag. Lists, the summary, the account and API keys have no tag. Send neither `If-Match` nor `If-None-Match` there. A write with `If-None-Match` succeeds only if the resource does not have the tag."},
		{errBodyTooLarge, "Send a smaller body. The default limit is 64 KiB (65,536 bytes). The operator of the server can change it."},
		{errUnknownCategory, "Create the category first, or use an id from `GET /categories`."},
		{errUnknownPet, "Create the pet first, or use an id from `GET /pets`."},
		{errIdempotencyKeyReused, "Use a new `Idempotency-Key` for every new request. Send a key again only with exactly the same request."},

		// errTooManyFailures has the same code.
		{errRateLimited, "Wait as many seconds as `Retry-After` says, and send fewer requests at once. The header `RateLimit` has the number of requests left. An address that sends too many requests without a valid key gets this error too. Correct the key in that case."},

		{errTooManyConcurrent, "Send fewer requests at the same time. An account may have 640 requests in progress, 128 bodies in upload and 8 MiB of unread lists. It may have one exact count or inventory summary at a time."},

		{errInternal, "Retry later. If the error persists, report it with the `requestId`, which is also in the server's log."},
		{errUnavailable, "Wait as many seconds as `Retry-After` says, and retry. A POST with an `Idempotency-Key` is safe to retry."},
	} {
		list = append(list, docs.Problem{Status: one.status, Code: one.code, Meaning: one.message, Remedy: one.remedy})
	}
	return list
}

// Error is the problem's code.
func (p *problem) Error() string { return p.code }

// saying returns the same problem in other words.
func (p *problem) saying(message string) *problem {
	q := *p
	q.message = message
	return &q
}

// after returns the problem with the time to wait before trying again.
func (p *problem) after(wait time.Duration) *problem {
	q := *p
	q.header = [2]string{"Retry-After", strconv.Itoa(wholeSeconds(wait))}
	return &q
}

// listing returns the problem with what is wrong.
func (p *problem) listing(violations []violation) *problem {
	q := *p
	q.violations = violations
	return &q
}

// problemOf turns any error into what the client is told. What is not a problem
// already comes from the database or from a mistake of ours, and is hidden.
func problemOf(err error) *problem {
	if p, ok := errors.AsType[*problem](err); ok {
		return p
	}
	if postgres.Unavailable(err) || errors.Is(err, context.Canceled) {
		return errUnavailable
	}
	return errInternal
}

// fail answers with the problem that err stands for. It is the only place that
// writes an error, and it hands the cause of a 5xx to the request's log line.
func (s *Server) fail(c *gin.Context, err error) {
	p := problemOf(err)
	if p.status >= http.StatusInternalServerError && !errors.Is(err, p) {
		c.Set(causeKey, err)
	}
	header := c.Writer.Header()
	if p.header[0] != "" {
		header.Set(p.header[0], p.header[1])
	}
	header["Cache-Control"] = noStore
	encoded, encodeErr := encode(errorBody{
		Code:      p.code,
		Message:   p.message,
		Status:    p.status,
		RequestID: header.Get("X-Request-Id"),
		Errors:    p.violations,
		Checks:    p.checks,
	})
	if encodeErr != nil {
		panic(fmt.Errorf("api: encoding an error: %w", encodeErr))
	}
	send(c, p.status, asJSON, encoded)
}

// errorBody is the Error object on the wire.
type errorBody struct {
	Code      string            `json:"code"`
	Message   string            `json:"message"`
	Status    int               `json:"status"`
	RequestID string            `json:"requestId"`
	Errors    []violation       `json:"errors,omitempty"`
	Checks    map[string]string `json:"checks,omitempty"`
}

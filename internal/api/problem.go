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
	errInvalidJSON           = &problem{status: 400, code: "invalid_json", message: "The body is not valid JSON."}
	errValidationFailed      = &problem{status: 400, code: "validation_failed", message: "The body does not have the form that this operation takes; see errors."}
	errUnsupportedContent    = &problem{status: 400, code: "unsupported_content_type", message: "Send the body as Content-Type: application/json, without a Content-Encoding."}
	errInvalidParameter      = &problem{status: 400, code: "invalid_parameter", message: "A parameter does not have the form that this operation takes; see errors."}
	errInvalidIdempotencyKey = &problem{status: 400, code: "invalid_idempotency_key", message: "The Idempotency-Key does not have the form that it must have; see errors."}
	errInvalidCursor         = &problem{status: 400, code: "invalid_cursor", message: "The cursor is not one that this list gave for the same filters and sort; begin again without it."}

	errMissingAPIKey     = &problem{status: 401, code: "missing_api_key", message: "Send an API key as Authorization: Bearer <API_KEY>.", header: [2]string{"WWW-Authenticate", `Bearer realm="petstore"`}}
	errInvalidAPIKey     = &problem{status: 401, code: "invalid_api_key", message: "The API key is malformed, unknown, revoked or expired.", header: [2]string{"WWW-Authenticate", `Bearer realm="petstore", error="invalid_token"`}}
	errInsufficientScope = &problem{status: 403, code: "insufficient_scope", message: "The API key's scope does not include this operation.", header: [2]string{"WWW-Authenticate", `Bearer realm="petstore", error="insufficient_scope"`}}

	errRouteNotFound     = &problem{status: 404, code: "route_not_found", message: "There is nothing at this path."}
	errPetNotFound       = &problem{status: 404, code: "pet_not_found", message: "There is no pet with this id."}
	errCategoryNotFound  = &problem{status: 404, code: "category_not_found", message: "There is no category with this id."}
	errOrderNotFound     = &problem{status: 404, code: "order_not_found", message: "There is no order with this id."}
	errInventoryNotFound = &problem{status: 404, code: "inventory_not_found", message: "There is no inventory entry for this pet."}
	errMessageNotFound   = &problem{status: 404, code: "message_not_found", message: "This account has no message with this id."}
	errAPIKeyNotFound    = &problem{status: 404, code: "api_key_not_found", message: "This account has no API key with this id, or it is revoked."}
	errMethodNotAllowed  = &problem{status: 405, code: "method_not_allowed", message: "This path does not take this method; see Allow."}
	errNotAcceptable     = &problem{status: 406, code: "not_acceptable", message: "The answer is application/json, which Accept excludes."}

	errCategoryExists    = &problem{status: 409, code: "category_exists", message: "There is a category of this name already; names are compared without case."}
	errCategoryInUse     = &problem{status: 409, code: "category_in_use", message: "There are pets in this category; move or delete them first."}
	errPetInUse          = &problem{status: 409, code: "pet_in_use", message: "There are orders of this pet, so it cannot be deleted."}
	errPetNotAvailable   = &problem{status: 409, code: "pet_not_available", message: "The pet is not available, so it cannot be ordered."}
	errInsufficientStock = &problem{status: 409, code: "insufficient_stock", message: "There are fewer units in stock than ordered."}
	errInvalidTransition = &problem{status: 409, code: "invalid_transition", message: "This change of state is not allowed."}
	errOrderComplete     = &problem{status: 409, code: "order_complete", message: "The order is complete, so it cannot be cancelled."}

	errLastAdminKey = &problem{status: 409, code: "last_admin_key", message: "This is the account's last live API key of scope admin. Create another one before you revoke it."}

	errIdempotencyInProgress = &problem{status: 409, code: "idempotency_in_progress", message: "Another request with this Idempotency-Key is still running.", header: [2]string{"Retry-After", "1"}}

	errRequestTimeout = &problem{status: 408, code: "request_timeout", message: "The body did not arrive in time."}

	errOperationSunset = &problem{status: 410, code: "operation_sunset", message: "This operation has ended; Link names its successor."}

	errPreconditionFailed   = &problem{status: 412, code: "precondition_failed", message: "The resource as it is now does not meet the If-Match or If-None-Match header, so nothing was done. Read it again and send its current tag."}
	errBodyTooLarge         = &problem{status: 413, code: "body_too_large", message: "The body is larger than this server takes."}
	errUnknownCategory      = &problem{status: 422, code: "unknown_category", message: "There is no category with the id in categoryId."}
	errIdempotencyKeyReused = &problem{status: 422, code: "idempotency_key_reused", message: "This Idempotency-Key was used for another path or body."}
	errUnknownPet           = &problem{status: 422, code: "unknown_pet", message: "There is no pet with the id in petId."}

	errRateLimited     = &problem{status: 429, code: "rate_limited", message: "This API key has sent too many requests; see Retry-After."}
	errTooManyFailures = &problem{status: 429, code: "rate_limited", message: "Too many requests from this address had no valid API key; see Retry-After."}

	errTooManyConcurrent = &problem{status: 429, code: "too_many_concurrent_requests", message: "Your account has too many requests in progress. Wait for their responses before you send more.", header: [2]string{"Retry-After", "1"}}

	errInternal    = &problem{status: 500, code: "internal_error", message: "The server failed. Quote the request id when you report it."}
	errUnavailable = &problem{status: 503, code: "unavailable", message: "The service cannot answer at the moment. Try again shortly.", header: [2]string{"Retry-After", "1"}}
	errOverloaded  = errUnavailable.saying("The service is answering as many requests as it can. Try again shortly.")
)

// explained lists every problem with what a client can do about it, in the order
// of section 8: /docs/errors shows it.
func explained() []docs.Problem {
	var list []docs.Problem
	for _, one := range []struct {
		*problem
		remedy string
	}{
		{errInvalidJSON, "Check the body with a JSON parser. It must be UTF-8 without a byte order mark, hold one value, give no member twice and nest at most 32 levels deep."},
		{errValidationFailed, "Correct every member that `errors` lists: `pointer` names it, and `code` and `message` say what is wrong. A required member that is missing is listed too."},
		{errUnsupportedContent, "Set the header `Content-Type: application/json`. With PATCH, `application/merge-patch+json` works too."},
		{errInvalidParameter, "Correct every parameter that `errors` lists. An unknown or empty parameter counts as wrong; in a query, write the `+` of a time's offset as `%2B`."},
		{errInvalidIdempotencyKey, "Send 1 to 255 visible ASCII characters, best a random UUID, and the header only once."},
		{errInvalidCursor, "Follow the `Link` header as it is instead of building URLs. Begin again without `cursor` when you change filters or sort."},

		{errMissingAPIKey, "Add the header `Authorization: Bearer <API_KEY>`. Check that the variable that holds the key is set where the program runs."},
		{errInvalidAPIKey, "Compare the key with the one you were given: `petstore_` and 36 letters and digits, without quotes or line breaks. If it is the same, it was revoked or has expired: get a new one."},
		{errInsufficientScope, "Use a key of a larger scope: `read` is enough for GET, `write` for changes, `admin` for API keys."},

		{errRouteNotFound, "Check the path for mistyped words, capitals, and a trailing or doubled slash."},
		{errPetNotFound, "Check the id with `GET /pets`. Somebody else may have deleted the pet."},
		{errCategoryNotFound, "Check the id with `GET /categories`. Somebody else may have deleted the category."},
		{errOrderNotFound, "Check the id with `GET /store/orders`. A cancelled order is gone."},
		{errInventoryNotFound, "Check the pet's id with `GET /pets`: every pet has an inventory entry, from its creation to its deletion."},
		{errMessageNotFound, "Use the id that the answer to `POST /messages` gave, with a key of the same account."},
		{errAPIKeyNotFound, "Check the id with `GET /account/api-keys`, with a key of the same account. A revoked key cannot be rotated: make a new one."},
		{errMethodNotAllowed, "Use one of the methods that the header `Allow` lists."},
		{errNotAcceptable, "Send `Accept: application/json`, or no `Accept` at all."},

		{errCategoryExists, "Use the category that is there (`GET /categories?name=`), or choose another name."},
		{errCategoryInUse, "Move its pets to another category with `PATCH /pets/{petId}`, or delete them, and try again."},
		{errPetInUse, "Keep the pet and set its status to `sold`. A pet that was ever ordered stays as long as its orders do."},
		{errPetNotAvailable, "Order another pet, or wait until this one is available: setting its stock makes it so."},
		{errInsufficientStock, "Order fewer units, or raise the stock with `PUT /store/inventory/{petId}`."},
		{errInvalidTransition, "Read the resource again and choose a change that its state allows; the reference has the rules under Stock and states."},
		{errOrderComplete, "Leave the order as it is: its units have left for good."},

		{errLastAdminKey, "Create another key of scope `admin` with `POST /account/api-keys`, and use it to revoke this one. To revoke every key of an account, its operator uses `petstore key revoke`."},

		{errIdempotencyInProgress, "Wait as many seconds as `Retry-After` says, and send the same request again to get its answer."},

		{errRequestTimeout, "Send the whole body within 10 seconds of the header. The server closes the connection: open another one and try again."},

		{errOperationSunset, "Use the successor that the header `Link` names as `successor-version`; the reference tells how they differ."},
		{errPreconditionFailed, "Read the resource again, decide anew, and send the change with the new tag. A list, the summary, the account and API keys have no tag: send neither `If-Match` nor `If-None-Match` there. `If-None-Match` with a write succeeds only if the resource does not have the tag."},
		{errBodyTooLarge, "Send a smaller body. The default limit is 64 KiB (65,536 bytes); the operator of the server can change it."},
		{errUnknownCategory, "Create the category first, or use the id of one that `GET /categories` lists."},
		{errUnknownPet, "Create the pet first, or use the id of one that `GET /pets` lists."},
		{errIdempotencyKeyReused, "Make a new `Idempotency-Key` for every new request, and repeat a key only with exactly the same request."},

		// errTooManyFailures has the same code.
		{errRateLimited, "Wait as many seconds as `Retry-After` says, and send less at once: the header `RateLimit` tells how many requests are left. An address from which too many requests had no valid key gets the same answer: correct the key."},

		{errTooManyConcurrent, "Send fewer requests at the same time. An account may use a quarter of what the server can do at once: 256 requests in progress, 128 bodies that are arriving, 8 MiB of lists that it has not yet read, and one exact count or inventory summary at a time."},

		{errInternal, "Try again later. If it goes on, report it with the `requestId`, which the server's log has too."},
		{errUnavailable, "Wait as many seconds as `Retry-After` says and try again. A POST that carries an `Idempotency-Key` is safe to repeat."},
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

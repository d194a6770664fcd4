// Package httpjson reads the requests and writes the responses of a JSON API over HTTP:
// bodies, parameters, entity tags, content negotiation, cursors and errors. It validates
// strictly and returns every error of an input at once. It uses no database.
package httpjson

import (
	"fmt"
	"net/http"
	"strconv"
	"time"
)

// Error is an error response, the schema Error of the API reference. Its methods return
// modified copies.
type Error struct {
	Status  int
	Code    string // for programs
	Message string // for people: the problem and the remedy
	Remedy  string // for the page of errors: more about what a client can do
	// Header is the name and value of a header of the response, if there is one.
	Header [2]string
	// Violations has everything that is wrong with an input.
	Violations []Violation
	// Checks has the state of each dependency, in responses of /readyz.
	Checks map[string]string
}

// Violation is one thing that is wrong with an input. One of Pointer, Parameter and
// Header says where.
type Violation struct {
	Pointer   *string `json:"pointer,omitzero"`   // RFC 6901, into the body
	Parameter *string `json:"parameter,omitzero"` // may be empty, as in ?=1
	Header    string  `json:"header,omitzero"`
	Code      string  `json:"code"`
	Message   string  `json:"message"`
}

// Errors that any JSON API has.
var (
	ErrInvalidJSON            = &Error{Status: 400, Code: "invalid_json", Message: "The body is not valid JSON. Correct the body."}
	ErrValidationFailed       = &Error{Status: 400, Code: "validation_failed", Message: "The body has invalid fields. Correct the fields listed in `errors`."}
	ErrUnsupportedContentType = &Error{Status: 400, Code: "unsupported_content_type", Message: "The body must have the header Content-Type: application/json, or application/merge-patch+json in a PATCH, and no Content-Encoding. Correct the headers."}
	ErrInvalidParameter       = &Error{Status: 400, Code: "invalid_parameter", Message: "The request has invalid parameters. Correct the parameters listed in `errors`."}
	ErrInvalidCursor          = &Error{Status: 400, Code: "invalid_cursor", Message: "The cursor is not valid for this list, filter and sort. Start again without cursor."}
	ErrNotAcceptable          = &Error{Status: 406, Code: "not_acceptable", Message: "The Accept header excludes application/json and any other type that the response can have. Change or omit the header."}
	ErrRequestTimeout         = &Error{Status: 408, Code: "request_timeout", Message: "The body did not arrive in time. Open a new connection and send the request again."}
	ErrPreconditionFailed     = &Error{Status: 412, Code: "precondition_failed", Message: "The resource does not meet the If-Match or If-None-Match header, so the server changed nothing. Read it again and send its current tag."}
	ErrBodyTooLarge           = &Error{Status: 413, Code: "body_too_large", Message: "The body is too large. Send a smaller body."}
)

// Error returns the error code.
func (e *Error) Error() string { return e.Code }

// WithMessage returns the error with another message.
func (e *Error) WithMessage(message string) *Error {
	changed := *e
	changed.Message = message
	return &changed
}

// WithRetryAfter returns the error with a Retry-After header, rounded up to seconds.
func (e *Error) WithRetryAfter(wait time.Duration) *Error {
	changed := *e
	changed.Header = [2]string{"Retry-After", strconv.Itoa(WholeSeconds(wait))}
	return &changed
}

// WholeSeconds returns a duration in seconds, rounded up.
func WholeSeconds(d time.Duration) int { return int((d + time.Second - 1) / time.Second) }

// WithViolations returns the error with everything that is wrong with an input.
func (e *Error) WithViolations(violations []Violation) *Error {
	changed := *e
	changed.Violations = violations
	return &changed
}

// Write sends the error. Nobody may store it.
func (e *Error) Write(w http.ResponseWriter, requestID string) {
	if e.Header[0] != "" {
		w.Header().Set(e.Header[0], e.Header[1])
	}
	w.Header().Set("Cache-Control", "no-store")
	body, err := Encode(errorBody{
		Code:      e.Code,
		Message:   e.Message,
		Status:    e.Status,
		RequestID: requestID,
		Errors:    e.Violations,
		Checks:    e.Checks,
	})
	if err != nil {
		panic(fmt.Errorf("httpjson: encoding an error: %w", err))
	}
	Send(w, e.Status, ContentType, body)
}

// errorBody is an Error in the form in which clients get it.
type errorBody struct {
	Code      string            `json:"code"`
	Message   string            `json:"message"`
	Status    int               `json:"status"`
	RequestID string            `json:"requestId"`
	Errors    []Violation       `json:"errors,omitempty"`
	Checks    map[string]string `json:"checks,omitempty"`
}

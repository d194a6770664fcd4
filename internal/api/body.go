package api

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"iter"
	"math"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/gin-gonic/gin"
	"github.com/go-json-experiment/json/jsontext"
)

// The bounds of section 1 of the contract, in code points and units.
const (
	maxNameLength        = 200
	maxDescriptionLength = 2000
	maxMessageLength     = 4000
	maxOrderQuantity     = 1_000_000
	maxStockQuantity     = 1_000_000_000
	maxAPIKeyNameLength  = 100

	maxDepth         = 32   // of a JSON value; the outermost is 1
	maxPointerLength = 1000 // bytes of a field name in the pointer of a violation
	maxNameInMessage = 100  // bytes of a field name in the message of a violation
)

// body is the JSON object of a request. Its methods take one field each and
// collect violations; a field that no method took is unknown. They return nil for
// a field that is absent or invalid: check err first.
type body struct {
	object     jsontext.Value // valid; nil when the body is empty or no object
	taken      []string
	readOnly   []string
	violations []violation
	// raw is the body itself, and idempotencyKey that of a POST, if it has one.
	raw            []byte
	idempotencyKey string
	failure        error // of the parameters or the JSON; nothing else is then reported
}

// body reads the body, once all parameters are right, and takes the request's
// place among those in progress. Fields named as readOnly are part of the
// resource, but not for the client to set.
func (r *request) body(readOnly ...string) *body {
	b := &body{readOnly: readOnly}
	if b.failure = r.err(); b.failure != nil {
		return b
	}
	if r.c.Request.Method == http.MethodPost {
		if b.idempotencyKey, b.failure = r.idempotencyKey(); b.failure != nil {
			return b
		}
	}
	if b.raw, b.failure = r.server.receiveBody(r.c); b.failure != nil {
		return b
	}
	// The client may have taken seconds, in which its key may have been revoked.
	if _, b.failure = r.server.authenticate(r.c); b.failure != nil {
		return b
	}
	if b.failure = r.server.reservePlace(r.c); b.failure != nil {
		return b
	}
	if len(b.raw) == 0 && r.bodyOptional {
		return b
	}
	b.object, b.violations, b.failure = parseObject(b.raw)
	return b
}

// receiveBody reads the whole body of a request, or returns an error that closes
// the connection if it did not read it all.
func (s *Server) receiveBody(c *gin.Context) (_ []byte, err error) {
	defer func() {
		if err != nil {
			// Otherwise net/http waits for the rest before it sends the response.
			c.Header("Connection", "close")
		}
	}()
	tooLarge := errBodyTooLarge.saying(fmt.Sprintf("The body is larger than %d bytes. Send a smaller body.", s.maxBodyBytes))
	size := c.Request.ContentLength
	if size > s.maxBodyBytes {
		return nil, tooLarge
	}
	if size < 0 { // unknown
		size = s.maxBodyBytes
	}
	arrived, err := s.limits.reserveBody(reservationOf(c), size)
	if err != nil {
		return nil, err
	}
	defer arrived()
	began := time.Now()
	text, err := io.ReadAll(http.MaxBytesReader(c.Writer, c.Request.Body, s.maxBodyBytes))
	if _, ok := errors.AsType[*http.MaxBytesError](err); ok {
		return nil, tooLarge
	}
	if errors.Is(err, os.ErrDeadlineExceeded) { // the ReadTimeout of the HTTP server
		return nil, errRequestTimeout
	}
	if err != nil {
		return nil, errInvalidJSON.saying("The body ended early. Send the whole body.")
	}
	c.Set(bodyReadKey, true)
	s.extendDeadline(c, time.Since(began))
	return text, nil
}

// optionalBody reads a body that may be left out, which is the same as {}.
func (r *request) optionalBody(readOnly ...string) *body {
	r.bodyOptional = true
	return r.body(readOnly...)
}

// parseObject reads one JSON value strictly: RFC 8259, with the UTF-8 and the
// unique names of RFC 7493. If it is not an object, a violation says so.
func parseObject(text []byte) (jsontext.Value, []violation, error) {
	decoder := jsontext.NewDecoder(bytes.NewBuffer(text))
	value, err := decoder.ReadValue()
	if err != nil {
		return nil, nil, invalidJSON(err)
	}
	value = value.Clone() // before the next read, which makes it void
	if _, err := decoder.ReadToken(); !errors.Is(err, io.EOF) {
		return nil, nil, errInvalidJSON.saying("The body is not valid JSON: it continues after the JSON value. Send exactly one value.")
	}
	if depth(value) > maxDepth {
		return nil, nil, errInvalidJSON.saying(fmt.Sprintf("The body is nested more than %d levels deep. Nest it less deeply.", maxDepth))
	}
	if value.Kind() != '{' {
		return nil, []violation{at("", "wrong_type", "The body must be a JSON object.")}, nil
	}
	return value, nil, nil
}

// fields yields the fields of a valid object one after the other. They are not
// kept in a map: a hostile body has thousands, and an operation takes a few.
func fields(object jsontext.Value) iter.Seq2[string, jsontext.Value] {
	return func(yield func(string, jsontext.Value) bool) {
		decoder := jsontext.NewDecoder(bytes.NewBuffer(object), jsontext.AllowDuplicateNames(true))
		if _, err := decoder.ReadToken(); err != nil { // the brace
			return
		}
		for decoder.PeekKind() == '"' {
			name, err := decoder.ReadToken()
			if err != nil {
				return
			}
			text := name.String()
			value, err := decoder.ReadValue()
			if err != nil || !yield(text, value) {
				return
			}
		}
	}
}

// invalidJSON says where the JSON is wrong, in the decoder's words without its name.
func invalidJSON(err error) error {
	if syntax, ok := errors.AsType[*jsontext.SyntacticError](err); ok && syntax.Err != nil {
		return errInvalidJSON.saying(fmt.Sprintf("The body is not valid JSON: at byte %d, %s. Correct the body.",
			syntax.ByteOffset, strings.TrimPrefix(syntax.Err.Error(), "jsontext: ")))
	}
	return errInvalidJSON
}

// depth is how deeply the arrays and objects of a valid value are nested.
func depth(value jsontext.Value) int {
	var depth, deepest int
	var inString, escaped bool
	for _, b := range value {
		switch {
		case escaped:
			escaped = false
		case inString:
			escaped = b == '\\'
			inString = b != '"'
		case b == '"':
			inString = true
		case b == '{' || b == '[':
			depth++
			deepest = max(deepest, depth)
		case b == '}' || b == ']':
			depth--
		}
	}
	return deepest
}

// at is a violation of what the pointer names; an empty one names the body.
func at(pointer jsontext.Pointer, code, message string) violation {
	text := string(pointer)
	return violation{Pointer: &text, Code: code, Message: message}
}

// reject records a violation of a field. The fault completes a sentence that begins
// with the field.
func (b *body) reject(name, code, fault string) {
	pointer, field := jsontext.Pointer("").AppendToken(name), "`"+name+"`"
	switch {
	case len(name) > maxPointerLength:
		pointer, field = "", "A field with a very long name"
	case name == "" || len(name) > maxNameInMessage:
		field = "The field"
	}
	b.violations = append(b.violations, at(pointer, code, field+" "+fault))
}

// quotedList returns values for a message, such as "`read`, `write`".
func quotedList(values []string) string { return "`" + strings.Join(values, "`, `") + "`" }

// err reports everything that is wrong with the body, as one problem; required are
// the fields that must be there.
func (b *body) err(required ...string) error {
	if b.failure != nil {
		return b.failure
	}
	for _, name := range required {
		if b.object != nil && b.value(name) == nil {
			b.reject(name, "required", "is required.")
		}
	}
	b.rejectOthers()
	if len(b.violations) == 0 {
		return nil
	}
	return errValidationFailed.listing(b.violations)
}

// rejectOthers rejects the fields that no method took, until there are
// [maxViolations].
func (b *body) rejectOthers() {
	for name := range fields(b.object) {
		switch {
		case len(b.violations) >= maxViolations:
			return
		case slices.Contains(b.taken, name):
		case slices.Contains(b.readOnly, name):
			b.reject(name, "read_only", "is read-only. Remove it, because only the server sets it.")
		default:
			b.reject(name, "unknown_field", "is not a field of this operation. Remove it or correct its spelling. Field names are case-sensitive.")
		}
	}
}

// value returns the value of a field; nil when it is absent.
func (b *body) value(name string) jsontext.Value {
	for have, value := range fields(b.object) {
		if have == name {
			return value.Clone()
		}
	}
	return nil
}

// take gives a member's value; null is wrong.
func (b *body) take(name string) (value jsontext.Value, given bool) {
	value, null := b.takeNullable(name)
	if null {
		b.reject(name, "null_not_allowed", "must not be null. Omit it or send a value.")
	}
	return value, value != nil
}

// takeNullable gives a member's value; nil when it is absent or null.
func (b *body) takeNullable(name string) (value jsontext.Value, null bool) {
	b.taken = append(b.taken, name)
	value = b.value(name)
	if value.Kind() == 'n' {
		return nil, true
	}
	return value, false
}

// text takes a string of least to most code points.
func (b *body) text(name string, least, most int) *string {
	value, given := b.take(name)
	if !given {
		return nil
	}
	return b.checkText(name, value, least, most)
}

func (b *body) checkText(name string, value jsontext.Value, least, most int) *string {
	if value.Kind() != '"' {
		b.reject(name, "wrong_type", "must be a string.")
		return nil
	}
	unquoted, err := jsontext.AppendUnquote(nil, value)
	if err != nil {
		b.reject(name, "wrong_type", "must be a string.")
		return nil
	}
	text := string(unquoted)
	switch length := utf8.RuneCountInString(text); {
	case strings.ContainsRune(text, 0):
		b.reject(name, "invalid_characters", "must not contain U+0000.")
	case length < least:
		b.reject(name, "too_short", fmt.Sprintf("must have at least %d character.", least))
	case length > most:
		b.reject(name, "too_long", fmt.Sprintf("must have at most %d characters.", most))
	default:
		return &text
	}
	return nil
}

// name takes the name of a pet or a category.
func (b *body) name() *string { return b.nameUpTo(maxNameLength) }

// nameUpTo takes a name of at most most code points.
func (b *body) nameUpTo(most int) *string {
	const name = "name"
	text := b.text(name, 1, most)
	if text == nil {
		return nil
	}
	blank := strings.TrimSpace(*text) == "" // Unicode White_Space
	control := strings.ContainsFunc(*text, unicode.IsControl)
	if blank {
		b.reject(name, "blank", "must contain a character that is not white space.")
	}
	if control {
		b.reject(name, "invalid_characters", "must not contain control characters.")
	}
	if blank || control {
		return nil
	}
	return text
}

// nullableText takes a string of at most most code points; a patch clears it with null.
func (b *body) nullableText(name string, most int) (text *string, cleared bool) {
	value, null := b.takeNullable(name)
	if value == nil {
		return nil, null
	}
	return b.checkText(name, value, 0, most), false
}

// enum takes a string that is one of those known.
func (b *body) enum(name string, known ...string) *string {
	text := b.text(name, 0, math.MaxInt)
	if text != nil && !slices.Contains(known, *text) {
		b.reject(name, "not_in_enum", "must be one of "+quotedList(known)+".")
		return nil
	}
	return text
}

// integer takes a number written as an integer, without fraction or exponent.
func (b *body) integer(name string, least, most int64) *int64 {
	value, given := b.take(name)
	if !given {
		return nil
	}
	if value.Kind() != '0' || bytes.ContainsAny(value, ".eE") {
		b.reject(name, "wrong_type", "must be an integer without a decimal point or exponent.")
		return nil
	}
	number, err := strconv.ParseInt(string(value), 10, 64)
	if err != nil || number < least || number > most {
		b.reject(name, "out_of_range", fmt.Sprintf("must be an integer between %d and %d.", least, most))
		return nil
	}
	return &number
}

// id takes the id of another resource.
func (b *body) id(name string) *int64 { return b.integer(name, 1, math.MaxInt64) }

// boolean takes true or false.
func (b *body) boolean(name string) *bool {
	value, given := b.take(name)
	if !given {
		return nil
	}
	if kind := value.Kind(); kind != 't' && kind != 'f' {
		b.reject(name, "wrong_type", "must be true or false.")
		return nil
	}
	result := value.Kind() == 't'
	return &result
}

// time takes an optional time of RFC 3339.
func (b *body) time(name string) *time.Time {
	value, given := b.take(name)
	if !given {
		return nil
	}
	return b.checkTime(name, value)
}

// futureTime takes an optional time that must be after now.
func (b *body) futureTime(name string, now time.Time) *time.Time {
	at := b.time(name)
	if at != nil && !at.After(now) {
		b.reject(name, "out_of_range", "must be in the future.")
		return nil
	}
	return at
}

// nullableTime takes an optional time; a patch clears it with null.
func (b *body) nullableTime(name string) (result *time.Time, cleared bool) {
	value, null := b.takeNullable(name)
	if value == nil {
		return nil, null
	}
	return b.checkTime(name, value), false
}

func (b *body) checkTime(name string, value jsontext.Value) *time.Time {
	text := b.checkText(name, value, 0, math.MaxInt)
	if text == nil {
		return nil
	}
	parsed, err := parseTime(*text)
	if err != nil {
		b.reject(name, "invalid_format", err.Error()+".")
		return nil
	}
	return &parsed
}

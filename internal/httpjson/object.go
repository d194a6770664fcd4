package httpjson

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"
)

const (
	maxDepth         = 32   // of a JSON value; the outermost level is 1
	maxPointerLength = 1000 // bytes of a field name in the pointer of a violation
	maxNameInMessage = 100  // bytes of a field name in the message of a violation
)

// ReadBody reads a whole body of at most the given size in bytes. The error is
// [ErrBodyTooLarge], [ErrRequestTimeout] or [ErrInvalidJSON] if the body is incomplete or malformed.
// After an error, the caller should close the connection instead of waiting for the rest.
func ReadBody(w http.ResponseWriter, r *http.Request, most int64) ([]byte, error) {
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, most))
	if err == nil {
		return body, nil
	}
	switch _, tooLarge := errors.AsType[*http.MaxBytesError](err); {
	case tooLarge:
		return nil, TooLarge(most)
	case errors.Is(err, os.ErrDeadlineExceeded): // the ReadTimeout of the HTTP server
		return nil, ErrRequestTimeout
	case errors.Is(err, io.ErrUnexpectedEOF):
		return nil, ErrInvalidJSON.WithMessage("The body ended early. Send the whole body.")
	default:
		return nil, ErrInvalidJSON.WithMessage("A chunk of the body is malformed, or the connection broke. Correct the body or send it again.")
	}
}

// TooLarge returns [ErrBodyTooLarge] with the maximum size in bytes.
func TooLarge(most int64) *Error {
	return ErrBodyTooLarge.WithMessage(fmt.Sprintf("The body is larger than %d bytes. Send a smaller body.", most))
}

// Object reads the fields of a JSON object and collects violations. Each method reads
// one field and returns nil if it is absent or invalid. A field that no method has read
// is unknown, so read them all before calling Err. The zero Object has no fields and
// requires none.
type Object struct {
	pointer    jsontext.Pointer // of the object in the body
	fields     []field          // nil if the body is empty or not an object
	known      []string
	required   []string
	readOnly   []string
	items      []*Object // of the arrays of objects in it
	violations []Violation
	failure    error // hides everything else
}

// ParseObject parses a body. The result of Err includes its errors.
func ParseObject(body []byte) *Object {
	value, err := parse(body)
	if err != nil {
		return Failed(err)
	}
	return objectAt("", value, "The body")
}

// objectAt returns the Object of the value at a pointer. Messages call the
// value by the name.
func objectAt(pointer jsontext.Pointer, value jsontext.Value, name string) *Object {
	if value.Kind() != '{' {
		return &Object{violations: []Violation{at(pointer, "wrong_type", name+" must be a JSON object.")}}
	}
	return &Object{pointer: pointer, fields: fieldsOf(value)}
}

// Failed returns an Object without fields whose Err is err.
func Failed(err error) *Object { return &Object{failure: err} }

// Require makes the absence of fields a violation.
func (o *Object) Require(names ...string) { o.required = append(o.required, names...) }

// RequireEither makes the absence of both fields a violation of the first one.
func (o *Object) RequireEither(first, second string) {
	if o.fields != nil && !o.Has(first) && !o.Has(second) {
		o.Reject(first, "required", "or `"+second+"` is required.")
	}
}

// ReadOnly makes the presence of fields a violation of its own kind: the resource has them,
// but the operation does not take them.
func (o *Object) ReadOnly(names ...string) { o.readOnly = append(o.readOnly, names...) }

// Has reports whether the object has a field. It does not read it.
func (o *Object) Has(name string) bool { return o.value(name) != nil }

// Exclude makes the presence of fields a violation, because of the value of another
// field. The reason completes a sentence that begins with the name of the field.
func (o *Object) Exclude(reason string, names ...string) {
	o.known = append(o.known, names...)
	for _, name := range names {
		if o.Has(name) {
			o.Reject(name, "not_allowed", reason)
		}
	}
}

// parse parses one JSON value strictly: RFC 8259, with valid UTF-8 and unique names
// (RFC 7493).
func parse(text []byte) (jsontext.Value, error) {
	decoder := jsontext.NewDecoder(bytes.NewBuffer(text))
	value, err := decoder.ReadValue()
	if err != nil {
		return nil, invalidJSON(err)
	}
	value = lastRead(decoder, text, value)
	if _, err := decoder.ReadToken(); !errors.Is(err, io.EOF) {
		return nil, ErrInvalidJSON.WithMessage("The body is not valid JSON: it continues after the JSON value. Send exactly one value.")
	}
	if depth(value) > maxDepth {
		return nil, ErrInvalidJSON.WithMessage(fmt.Sprintf("The body is nested more than %d levels deep. Nest it less deeply.", maxDepth))
	}
	return value, nil
}

// field is a field of an object.
type field struct {
	name  []byte
	value jsontext.Value
}

// usualFields is more than the number of fields of most objects.
const usualFields = 8

// fieldsOf returns the fields of a valid object. It reads them once, because a hostile body has thousands.
// There is no map of them: an operation looks up a few.
func fieldsOf(object jsontext.Value) []field {
	fields := make([]field, 0, usualFields)
	decoder := jsontext.NewDecoder(bytes.NewBuffer(object), jsontext.AllowDuplicateNames(true))
	_, _ = decoder.ReadToken() // the brace
	for decoder.PeekKind() == '"' {
		name := next(decoder, object)
		if bytes.IndexByte(name, '\\') < 0 {
			name = name[1 : len(name)-1]
		} else {
			name, _ = jsontext.AppendUnquote(nil, name)
		}
		fields = append(fields, field{name, next(decoder, object)})
	}
	return fields
}

// elements returns the first elements of a valid array, at most most.
func elements(array jsontext.Value, most int) (items []jsontext.Value) {
	decoder := jsontext.NewDecoder(bytes.NewBuffer(array), jsontext.AllowDuplicateNames(true))
	_, _ = decoder.ReadToken() // the bracket
	for len(items) < most && decoder.PeekKind() != ']' {
		items = append(items, next(decoder, array))
	}
	return items
}

// next reads the next value of a decoder of a valid text.
func next(decoder *jsontext.Decoder, text []byte) jsontext.Value {
	value, _ := decoder.ReadValue()
	return lastRead(decoder, text, value)
}

// lastRead returns the value that a decoder of a text has just read, as the part of the text: the next read
// invalidates what the decoder returns.
func lastRead(decoder *jsontext.Decoder, text []byte, value jsontext.Value) jsontext.Value {
	end := decoder.InputOffset()
	return text[end-int64(len(value)) : end : end]
}

// invalidJSON returns [ErrInvalidJSON] with the position and the message of the decoder. The decoder
// names no position only if the body is empty.
func invalidJSON(err error) error {
	if syntax, ok := errors.AsType[*jsontext.SyntacticError](err); ok && syntax.Err != nil {
		fault := strings.TrimPrefix(syntax.Err.Error(), "jsontext: ")
		if errors.Is(syntax.Err, jsontext.ErrDuplicateName) {
			fault = "a field that the object already has"
		}
		return ErrInvalidJSON.WithMessage(fmt.Sprintf("The body is not valid JSON: at byte %d, %s. Correct the body.", syntax.ByteOffset, fault))
	}
	return ErrInvalidJSON.WithMessage("The body is empty. Send a JSON object.")
}

// depth returns how deeply the arrays and objects of a valid value are nested.
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

// at returns a violation of the value at a pointer. An empty pointer is the body.
func at(pointer jsontext.Pointer, code, message string) Violation {
	text := string(pointer)
	return Violation{Pointer: &text, Code: code, Message: message}
}

// Reject makes the value of a field a violation. The fault completes a sentence that begins
// with the name of the field.
func (o *Object) Reject(name, code, fault string) {
	pointer, field := o.pointer.AppendToken(name), "`"+name+"`"
	switch {
	case len(name) > maxPointerLength:
		pointer, field = o.pointer, "A field with a very long name"
	case name == "" || len(name) > maxNameInMessage:
		field = "The field"
	}
	o.violations = append(o.violations, at(pointer, code, field+" "+fault))
}

// QuotedList returns values for a message, such as "`read`, `write`".
func QuotedList(values []string) string { return "`" + strings.Join(values, "`, `") + "`" }

// Err returns everything that is wrong with the body, as [ErrValidationFailed], or the
// error that made it unreadable, or nil.
func (o *Object) Err() error {
	if o.failure != nil {
		return o.failure
	}
	violations := o.check()
	if len(violations) == 0 {
		return nil
	}
	return ErrValidationFailed.WithViolations(violations[:min(len(violations), maxViolations)])
}

// check returns the violations, including missing and unknown fields. It changes nothing,
// so that Err may be called again.
func (o *Object) check() []Violation {
	checked := *o
	checked.violations = slices.Clip(o.violations)
	for _, name := range o.required {
		if o.fields != nil && !o.Has(name) {
			checked.Reject(name, "required", "is required.")
		}
	}
	checked.rejectUnknown()
	for _, item := range o.items {
		if len(checked.violations) < maxViolations {
			checked.violations = append(checked.violations, item.check()...)
		}
	}
	return checked.violations
}

// rejectUnknown rejects the fields that no method has read, up to [maxViolations].
func (o *Object) rejectUnknown() {
	for _, f := range o.fields {
		switch name := string(f.name); {
		case len(o.violations) >= maxViolations:
			return
		case slices.Contains(o.known, name):
		case slices.Contains(o.readOnly, name):
			o.Reject(name, "read_only", "is read-only in this operation. Remove it.")
		default:
			o.Reject(name, "unknown_field", "is not a field of this operation. Remove it or correct its spelling. Field names are case-sensitive.")
		}
	}
}

// value returns the value of a field, or nil if it is absent.
func (o *Object) value(name string) jsontext.Value {
	for _, f := range o.fields {
		if string(f.name) == name {
			return f.value
		}
	}
	return nil
}

// take reads the value of a field that must not be null, or returns nil if it is absent.
func (o *Object) take(name string) jsontext.Value {
	value, null := o.takeNullable(name)
	if null {
		o.Reject(name, "null_not_allowed", "must not be null. Omit it or send a value.")
	}
	return value
}

// takeKind is [Object.take] for a value of one of some kinds. Any other value is a violation with the
// fault.
func (o *Object) takeKind(name, fault string, kinds ...jsontext.Kind) jsontext.Value {
	value := o.take(name)
	if value != nil && !slices.Contains(kinds, value.Kind()) {
		o.Reject(name, "wrong_type", fault)
		return nil
	}
	return value
}

// takeNullable reads the value of a field, or returns nil if it is absent or null.
func (o *Object) takeNullable(name string) (value jsontext.Value, null bool) {
	o.known = append(o.known, name)
	value = o.value(name)
	if value.Kind() == 'n' {
		return nil, true
	}
	return value, false
}

// Text reads a string of least to most code points.
func (o *Object) Text(name string, least, most int) *string {
	return o.checkText(name, o.take(name), least, most)
}

// checkText reads a string of least to most code points, or returns nil if there is no value.
func (o *Object) checkText(name string, value jsontext.Value, least, most int) *string {
	if value == nil {
		return nil
	}
	unquoted, err := jsontext.AppendUnquote(nil, value)
	if err != nil { // it is no string
		o.Reject(name, "wrong_type", "must be a string.")
		return nil
	}
	text := string(unquoted)
	switch length := utf8.RuneCountInString(text); {
	case strings.ContainsRune(text, 0):
		o.Reject(name, "invalid_characters", "must not contain U+0000.")
	case length < least:
		o.Reject(name, "too_short", fmt.Sprintf("must have at least %d character.", least))
	case length > most:
		o.Reject(name, "too_long", fmt.Sprintf("must have at most %d characters.", most))
	default:
		return &text
	}
	return nil
}

// Name reads the field name, of 1 to most code points, at least one of them not white
// space and none a control character.
func (o *Object) Name(most int) *string {
	const name = "name"
	text := o.Text(name, 1, most)
	if text == nil {
		return nil
	}
	blank := strings.TrimSpace(*text) == "" // Unicode White_Space
	control := strings.ContainsFunc(*text, unicode.IsControl)
	if blank {
		o.Reject(name, "blank", "must contain a character that is not white space.")
	}
	if control {
		o.Reject(name, "invalid_characters", "must not contain control characters.")
	}
	if blank || control {
		return nil
	}
	return text
}

// NullableText reads a string of at most most code points, or null, which clears it.
func (o *Object) NullableText(name string, most int) (text *string, cleared bool) {
	value, null := o.takeNullable(name)
	return o.checkText(name, value, 0, most), null
}

// Enum reads a string with one of the known values.
func (o *Object) Enum(name string, known ...string) *string {
	text := o.Text(name, 0, math.MaxInt)
	if text != nil && !slices.Contains(known, *text) {
		o.Reject(name, "not_in_enum", "must be one of "+QuotedList(known)+".")
		return nil
	}
	return text
}

// Enums reads an array of at least one of the known strings, and returns each once, in
// the order of the array.
func (o *Object) Enums(name string, known ...string) []string {
	value := o.takeKind(name, "must be an array of strings.", '[')
	if value == nil {
		return nil
	}
	items := elements(value, MaxValues+1)
	var all []string
	valid := true
	for i, item := range items[:min(len(items), MaxValues)] {
		text, err := jsontext.AppendUnquote(nil, item)
		pointer := o.pointer.AppendToken(name).AppendToken(strconv.Itoa(i))
		switch {
		case item.Kind() != '"' || err != nil:
			o.violations = append(o.violations, at(pointer, "wrong_type", fmt.Sprintf("Item %d of %#q must be a string.", i, name)))
			valid = false
		case !slices.Contains(known, string(text)):
			o.violations = append(o.violations, at(pointer, "not_in_enum", fmt.Sprintf("Item %d of %#q must be one of %s.", i, name, QuotedList(known))))
			valid = false
		case !slices.Contains(all, string(text)):
			all = append(all, string(text))
		}
	}
	switch {
	case len(items) == 0:
		o.Reject(name, "too_few", "must have at least one item.")
		return nil
	case len(items) > MaxValues:
		o.Reject(name, "too_many", fmt.Sprintf("must have at most %d items.", MaxValues))
		return nil
	case !valid:
		return nil
	}
	return all
}

// Objects reads an array of at most most objects. Read the fields of all of them before
// calling Err.
func (o *Object) Objects(name string, most int) []*Object {
	value := o.takeKind(name, "must be an array of objects.", '[')
	if value == nil {
		return nil
	}
	items := elements(value, most+1)
	if len(items) > most {
		o.Reject(name, "too_many", fmt.Sprintf("must have at most %d items.", most))
		return nil
	}
	objects := make([]*Object, len(items))
	for i, item := range items {
		pointer := o.pointer.AppendToken(name).AppendToken(strconv.Itoa(i))
		objects[i] = objectAt(pointer, item, fmt.Sprintf("Item %d of %#q", i, name))
	}
	o.items = append(o.items, objects...)
	return objects
}

// Integer reads an integer, written without a decimal point or exponent.
func (o *Object) Integer(name string, least, most int64) *int64 {
	value := o.take(name)
	if value == nil {
		return nil
	}
	if value.Kind() != '0' || bytes.ContainsAny(value, ".eE") {
		o.Reject(name, "wrong_type", "must be an integer without a decimal point or exponent.")
		return nil
	}
	number, err := strconv.ParseInt(string(value), 10, 64)
	if err != nil || number < least || number > most {
		o.Reject(name, "out_of_range", fmt.Sprintf("must be an integer between %d and %d.", least, most))
		return nil
	}
	return &number
}

// IntegerEnum reads an integer with one of the known values.
func (o *Object) IntegerEnum(name string, known ...int64) *int64 {
	number := o.Integer(name, math.MinInt64, math.MaxInt64)
	if number != nil && !slices.Contains(known, *number) {
		texts := make([]string, len(known))
		for i, value := range known {
			texts[i] = strconv.FormatInt(value, 10)
		}
		o.Reject(name, "not_in_enum", "must be one of "+QuotedList(texts)+".")
		return nil
	}
	return number
}

// Share reads a number above 0, of at most 1.
func (o *Object) Share(name string) *float64 {
	value := o.takeKind(name, "must be a number.", '0')
	if value == nil {
		return nil
	}
	number, err := strconv.ParseFloat(string(value), 64)
	if err != nil || number <= 0 || number > 1 {
		o.Reject(name, "out_of_range", "must be a number above 0 and at most 1.")
		return nil
	}
	return &number
}

// ID reads the id of a resource.
func (o *Object) ID(name string) *int64 { return o.Integer(name, 1, math.MaxInt64) }

// Bool reads true or false.
func (o *Object) Bool(name string) *bool {
	value := o.takeKind(name, "must be true or false.", 't', 'f')
	if value == nil {
		return nil
	}
	result := value.Kind() == 't'
	return &result
}

// Time reads a time of RFC 3339.
func (o *Object) Time(name string) *time.Time {
	return o.checkTime(name, o.take(name))
}

// FutureTime reads a time that must be after now.
func (o *Object) FutureTime(name string, now time.Time) *time.Time {
	at := o.Time(name)
	if at != nil && !at.After(now) {
		o.Reject(name, "out_of_range", "must be in the future.")
		return nil
	}
	return at
}

// NullableTime reads a time, or null, which clears it.
func (o *Object) NullableTime(name string) (result *time.Time, cleared bool) {
	value, null := o.takeNullable(name)
	return o.checkTime(name, value), null
}

// checkTime reads a time, or returns nil if there is no value.
func (o *Object) checkTime(name string, value jsontext.Value) *time.Time {
	text := o.checkText(name, value, 0, math.MaxInt)
	if text == nil {
		return nil
	}
	parsed, err := parseTime(*text)
	if err != nil {
		o.Reject(name, "invalid_format", err.Error()+".")
		return nil
	}
	return &parsed
}

package httpjson

import (
	"fmt"
	"math"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"
)

const (
	maxParameters    = 1000 // of a query, repeated ones included
	maxParameterName = 200  // bytes of a name in an error
	maxViolations    = 100  // in one response
)

// MaxValues is the maximum number of values of a repeatable parameter.
const MaxValues = 100

// Params reads the parameters of a request and collects violations. Each method reads
// one parameter. A query parameter that no method has read is unknown, so read them all
// before calling Err.
type Params struct {
	path       func(name string) string
	query      url.Values
	known      []string
	violations []Violation
}

// ParseParams parses a query. Path returns the value of a path parameter.
func ParseParams(rawQuery string, path func(name string) string) *Params {
	p := &Params{path: path}
	p.parseQuery(rawQuery)
	return p
}

// parseQuery is like url.ParseQuery, but reports which parameter is invalid.
func (p *Params) parseQuery(raw string) {
	if raw == "" {
		return
	}
	p.query = url.Values{}
	parameters, empty := 0, false
	for pair := range strings.SplitSeq(raw, "&") {
		if len(p.violations) >= maxViolations { // the response has no more
			return
		}
		if pair == "" {
			if !empty {
				p.Reject("", "empty", "The query has an empty parameter. Remove the & at its start or end, or one of two in a row.")
			}
			empty = true
			continue
		}
		rawName, rawValue, _ := strings.Cut(pair, "=")
		if parameters++; parameters > maxParameters { // parsing would use 200 times the memory of the header
			p.Reject(rawName, "too_many", fmt.Sprintf("The query must have at most %d parameters. The server did not read the parameters after this one.", maxParameters))
			return
		}
		name, code, fault := unescape(rawName)
		if code != "" {
			p.Reject(rawName, code, "The name of the parameter "+fault+".")
			continue
		}
		value, code, fault := unescape(rawValue)
		if code != "" {
			p.known = append(p.known, name)
			p.Reject(name, code, quoted(name)+" "+fault+".")
			continue
		}
		p.query[name] = append(p.query[name], value)
	}
}

// unescape decodes the name or the value of a parameter into text that Postgres can
// store. If it cannot, it returns the code of the violation and the fault, which
// completes a sentence that begins with the name.
func unescape(raw string) (text, code, fault string) {
	text, err := url.QueryUnescape(raw)
	switch {
	case strings.Contains(raw, ";"): // once a separator, so url.ParseQuery rejects it
		return "", "invalid_format", "must not contain a semicolon. Write it as %3B"
	case err != nil || !utf8.ValidString(text):
		return "", "invalid_format", "must be percent-encoded UTF-8"
	case strings.ContainsRune(text, 0):
		return "", "invalid_characters", "must not contain U+0000"
	default:
		return text, "", ""
	}
}

// Reject records a violation. The message is a sentence.
func (p *Params) Reject(parameter, code, message string) {
	if len(parameter) > maxParameterName {
		parameter = parameter[:maxParameterName]
	}
	parameter = strings.ToValidUTF8(parameter, "\uFFFD")
	p.violations = append(p.violations, Violation{Parameter: &parameter, Code: code, Message: message})
}

// quoted returns the name of a parameter that a client chose, for a message.
func quoted(name string) string {
	if name == "" || len(name) > maxNameInMessage {
		return "The parameter"
	}
	return "`" + name + "`"
}

// Err returns everything that is wrong with the parameters, as [ErrInvalidParameter], or
// nil.
func (p *Params) Err() error {
	slices.Sort(p.known) // for the search: a query may have hundreds of names, known and unknown
	var unknown []string
	for name := range p.query {
		if _, isKnown := slices.BinarySearch(p.known, name); !isKnown {
			unknown = append(unknown, name)
		}
	}
	slices.Sort(unknown)
	checked := Params{violations: slices.Clip(p.violations)} // Err may be called again
	for _, name := range unknown[:min(len(unknown), maxViolations)] {
		checked.Reject(name, "unknown", quoted(name)+" is not a parameter of this operation. Remove it or correct its spelling.")
	}
	if len(checked.violations) == 0 {
		return nil
	}
	return ErrInvalidParameter.WithViolations(checked.violations[:min(len(checked.violations), maxViolations)])
}

// PathID reads an id in the path.
func (p *Params) PathID(name string) int64 {
	return p.parseInteger(name, p.path(name), 1, math.MaxInt64)
}

// values reads a repeatable parameter and returns each value once.
func (p *Params) values(name string) []string {
	p.known = append(p.known, name)
	switch values := p.query[name]; {
	case len(values) > MaxValues:
		p.Reject(name, "too_many", fmt.Sprintf("%#q must appear at most %d times.", name, MaxValues))
		return nil
	case slices.Contains(values, ""):
		p.Reject(name, "empty", "`"+name+"` must not be empty. Remove it or send a value.")
		return nil
	default:
		return slices.Compact(slices.Sorted(slices.Values(values)))
	}
}

// Has reports whether the query has a parameter. It does not read it.
func (p *Params) Has(name string) bool { return p.query.Has(name) }

// Value reads an optional parameter.
func (p *Params) Value(name string) (value string, given bool) {
	p.known = append(p.known, name)
	switch values := p.query[name]; {
	case len(values) == 0:
		return "", false
	case len(values) > 1:
		p.Reject(name, "repeated", "`"+name+"` must appear only once.")
		return "", false
	case values[0] == "":
		p.Reject(name, "empty", "`"+name+"` must not be empty. Remove it or send a value.")
		return "", false
	default:
		return values[0], true
	}
}

// parseInteger parses a decimal integer without sign or leading zero.
func (p *Params) parseInteger(name, text string, least, most int64) int64 {
	if text == "" || strings.Trim(text, "0123456789") != "" || (len(text) > 1 && text[0] == '0') {
		p.Reject(name, "invalid_format", "`"+name+"` must be a decimal integer without a sign or leading zeros.")
		return least
	}
	number, err := strconv.ParseInt(text, 10, 64)
	if err != nil || number < least || number > most {
		p.Reject(name, "out_of_range", fmt.Sprintf("%#q must be an integer between %d and %d.", name, least, most))
		return least
	}
	return number
}

// Integer reads an optional integer, or returns nil.
func (p *Params) Integer(name string, least, most int64) *int64 {
	text, given := p.Value(name)
	if !given {
		return nil
	}
	number := p.parseInteger(name, text, least, most)
	return &number
}

// ID reads an optional id, or returns nil.
func (p *Params) ID(name string) *int64 { return p.Integer(name, 1, math.MaxInt64) }

// IDs reads a repeatable id.
func (p *Params) IDs(name string) []int64 {
	values := p.values(name)
	ids := make([]int64, len(values))
	for i, text := range values {
		ids[i] = p.parseInteger(name, text, 1, math.MaxInt64)
	}
	return ids
}

// Enum reads an optional parameter with one of the known values.
func (p *Params) Enum(name string, known ...string) (value string, given bool) {
	value, given = p.Value(name)
	if given && !slices.Contains(known, value) {
		p.Reject(name, "not_in_enum", "`"+name+"` must be one of "+QuotedList(known)+".")
		return "", false
	}
	return value, given
}

// Enums reads a repeatable parameter with known values.
func (p *Params) Enums(name string, known ...string) []string {
	values := p.values(name)
	for _, value := range values {
		if !slices.Contains(known, value) {
			p.Reject(name, "not_in_enum", "Each `"+name+"` must be one of "+QuotedList(known)+".")
			return nil
		}
	}
	return values
}

// Bool reads an optional true or false, or returns nil.
func (p *Params) Bool(name string) *bool {
	text, given := p.Enum(name, "true", "false")
	if !given {
		return nil
	}
	value := text == "true"
	return &value
}

// Time reads an optional time, or returns nil.
func (p *Params) Time(name string) *time.Time {
	text, given := p.Value(name)
	if !given {
		return nil
	}
	at, err := parseTime(text)
	if err != nil {
		fault := err.Error()
		if _, err := parseTime(strings.ReplaceAll(text, " ", "+")); err == nil {
			fault = "must have `%2B` instead of `+`, which means a space in a query"
		}
		p.Reject(name, "invalid_format", "`"+name+"` "+fault+".")
		return nil
	}
	return &at
}

// Text reads an optional text of at most most characters.
func (p *Params) Text(name string, most int) string {
	text, given := p.Value(name)
	if given && utf8.RuneCountInString(text) > most {
		p.Reject(name, "too_long", fmt.Sprintf("%#q must have at most %d characters.", name, most))
	}
	return text
}

package api

import (
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"

	"github.com/gin-gonic/gin"
)

const (
	maxParameters    = 1000 // of one query; repeated ones count each time
	maxFilterValues  = 100  // of one repeatable parameter
	maxParameterName = 200  // bytes of a name that is repeated in an error
	maxViolations    = 100  // that are listed in one answer
	maxPrefixLength  = maxNameLength
)

// request reads the parameters of one request and gathers what is wrong with
// them. A query parameter that no method asked for is unknown, so every handler
// reads all that it takes before it asks for err or body.
type request struct {
	c          *gin.Context
	server     *Server
	query      url.Values
	asked      []string
	violations []violation
	// bodyOptional says that an empty body stands for {}.
	bodyOptional bool
	// secret says that the answer holds a secret, and so cannot be stored.
	secret bool
}

// read begins to read a request.
func (s *Server) read(c *gin.Context) *request {
	r := &request{c: c, server: s}
	r.parseQuery(c.Request.URL.RawQuery)
	return r
}

// parseQuery is url.ParseQuery, but names the parameter that is ill-formed.
func (r *request) parseQuery(raw string) {
	if raw == "" {
		return
	}
	r.query = url.Values{}
	parameters, empty := 0, false
	for pair := range strings.SplitSeq(raw, "&") {
		if pair == "" {
			if !empty {
				r.reject("", "empty", "The query has an empty parameter. Remove the & at its start or end, or one of two in a row.")
			}
			empty = true
			continue
		}
		rawName, rawValue, _ := strings.Cut(pair, "=")
		if parameters++; parameters > maxParameters { // a header full of them would cost 200 times its size
			r.reject(rawName, "too_many", fmt.Sprintf("The query must have at most %d parameters. The server did not read the parameters after this one.", maxParameters))
			return
		}
		name, code, fault := unescape(rawName)
		if code != "" {
			r.reject(rawName, code, "The name of the parameter "+fault+".")
			continue
		}
		value, code, fault := unescape(rawValue)
		if code != "" {
			r.asked = append(r.asked, name)
			r.reject(name, code, quoted(name)+" "+fault+".")
			continue
		}
		r.query[name] = append(r.query[name], value)
	}
}

// unescape decodes the name or the value of a parameter into what Postgres takes
// as text; where it cannot, code is that of the violation, and fault says what
// the name or the value does wrong.
func unescape(raw string) (text, code, fault string) {
	text, err := url.QueryUnescape(raw)
	switch {
	case strings.Contains(raw, ";"): // once a separator, and so refused by url.ParseQuery
		return "", "invalid_format", "must not contain a semicolon. Write it as %3B"
	case err != nil || !utf8.ValidString(text):
		return "", "invalid_format", "must be percent-encoded UTF-8"
	case strings.ContainsRune(text, 0):
		return "", "invalid_characters", "must not contain U+0000"
	default:
		return text, "", ""
	}
}

func (r *request) reject(parameter, code, message string) {
	if len(parameter) > maxParameterName {
		parameter = parameter[:maxParameterName]
	}
	parameter = strings.ToValidUTF8(parameter, "\uFFFD")
	r.violations = append(r.violations, violation{Parameter: &parameter, Code: code, Message: message})
}

// quoted returns the name of a parameter that a client chose, for a message.
func quoted(name string) string {
	if name == "" || len(name) > maxNameInMessage {
		return "The parameter"
	}
	return "`" + name + "`"
}

// err reports all that is wrong with the parameters, as one problem.
func (r *request) err() error {
	var unknown []string
	for name := range r.query {
		if !slices.Contains(r.asked, name) {
			unknown = append(unknown, name)
		}
	}
	slices.Sort(unknown)
	for _, name := range unknown {
		r.reject(name, "unknown", quoted(name)+" is not a parameter of this operation. Remove it or correct its spelling.")
	}
	if len(r.violations) == 0 {
		return nil
	}
	return errInvalidParameter.listing(r.violations[:min(len(r.violations), maxViolations)])
}

// pathID reads an id in the path.
func (r *request) pathID(name string) int64 {
	return r.integer(name, r.c.Param(name), 1, math.MaxInt64)
}

// values reads a repeatable parameter, and gives each value once.
func (r *request) values(name string) []string {
	r.asked = append(r.asked, name)
	switch values := r.query[name]; {
	case len(values) > maxFilterValues:
		r.reject(name, "too_many", fmt.Sprintf("%#q must appear at most %d times.", name, maxFilterValues))
		return nil
	case slices.Contains(values, ""):
		r.reject(name, "empty", "`"+name+"` must not be empty. Remove it or send a value.")
		return nil
	default:
		return slices.Compact(slices.Sorted(slices.Values(values)))
	}
}

// value reads a parameter that may stand there once.
func (r *request) value(name string) (value string, given bool) {
	r.asked = append(r.asked, name)
	switch values := r.query[name]; {
	case len(values) == 0:
		return "", false
	case len(values) > 1:
		r.reject(name, "repeated", "`"+name+"` must appear only once.")
		return "", false
	case values[0] == "":
		r.reject(name, "empty", "`"+name+"` must not be empty. Remove it or send a value.")
		return "", false
	default:
		return values[0], true
	}
}

// integer reads a decimal number without sign or leading zero.
func (r *request) integer(name, text string, least, most int64) int64 {
	if text == "" || strings.Trim(text, "0123456789") != "" || (len(text) > 1 && text[0] == '0') {
		r.reject(name, "invalid_format", "`"+name+"` must be a decimal integer without a sign or leading zeros.")
		return least
	}
	number, err := strconv.ParseInt(text, 10, 64)
	if err != nil || number < least || number > most {
		r.reject(name, "out_of_range", fmt.Sprintf("%#q must be an integer between %d and %d.", name, least, most))
		return least
	}
	return number
}

// queryInteger reads an optional number; nil when it is not given.
func (r *request) queryInteger(name string, least, most int64) *int64 {
	text, given := r.value(name)
	if !given {
		return nil
	}
	number := r.integer(name, text, least, most)
	return &number
}

// queryID reads an optional id; nil when it is not given.
func (r *request) queryID(name string) *int64 { return r.queryInteger(name, 1, math.MaxInt64) }

// queryIDs reads a repeatable id.
func (r *request) queryIDs(name string) []int64 {
	values := r.values(name)
	ids := make([]int64, len(values))
	for i, text := range values {
		ids[i] = r.integer(name, text, 1, math.MaxInt64)
	}
	return ids
}

// queryEnum reads a parameter that has one of the values known.
func (r *request) queryEnum(name string, known ...string) (value string, given bool) {
	value, given = r.value(name)
	if given && !slices.Contains(known, value) {
		r.reject(name, "not_in_enum", "`"+name+"` must be one of "+quotedList(known)+".")
		return "", false
	}
	return value, given
}

// queryEnums reads a repeatable parameter whose values are among those known.
func (r *request) queryEnums(name string, known ...string) []string {
	values := r.values(name)
	for _, value := range values {
		if !slices.Contains(known, value) {
			r.reject(name, "not_in_enum", "Each `"+name+"` must be one of "+quotedList(known)+".")
			return nil
		}
	}
	return values
}

// queryBool reads an optional true or false; nil when it is not given.
func (r *request) queryBool(name string) *bool {
	text, given := r.queryEnum(name, "true", "false")
	if !given {
		return nil
	}
	value := text == "true"
	return &value
}

// queryTime reads an optional time; nil when it is not given.
func (r *request) queryTime(name string) *time.Time {
	text, given := r.value(name)
	if !given {
		return nil
	}
	at, err := parseTime(text)
	if err != nil {
		r.reject(name, "invalid_format", "`"+name+"` "+err.Error()+".")
		return nil
	}
	return &at
}

// queryPrefix reads the beginning of a name; empty when it is not given.
func (r *request) queryPrefix(name string) string {
	prefix, given := r.value(name)
	switch {
	case !given:
	case utf8.RuneCountInString(prefix) > maxPrefixLength:
		r.reject(name, "too_long", fmt.Sprintf("%#q must have at most %d characters.", name, maxPrefixLength))
	case strings.ContainsFunc(prefix, unicode.IsControl):
		r.reject(name, "invalid_characters", "`"+name+"` must not contain control characters.")
	}
	return prefix
}

// timePattern is the date-time of RFC 3339, section 5.6, with T and Z in either case
// and at most nine digits of a second. Its first group is the second.
var timePattern = regexp.MustCompile(`^\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:(\d\d)(?:\.\d{1,9})?(?:[Zz]|[+-](?:[01]\d|2[0-3]):[0-5]\d)$`)

// Faults of a time. Each completes a sentence that begins with where the time is.
var (
	errNotATime   = errors.New("must be an RFC 3339 time in the years 0001 to 9999 with at most nine fractional digits, such as 2026-12-24T09:30:00Z")
	errLeapSecond = errors.New("must not have the second 60, because leap seconds are not supported")
)

// parseTime reads a time of RFC 3339 strictly, in UTC and cut to the microseconds
// that Postgres keeps. The error is errNotATime or errLeapSecond.
func parseTime(text string) (time.Time, error) {
	// time.Parse lets pass a comma before the fraction, more digits in it, an
	// hour of one digit and an offset of a day.
	parts := timePattern.FindStringSubmatch(text)
	if parts == nil {
		return time.Time{}, errNotATime
	}
	if parts[1] == "60" {
		return time.Time{}, errLeapSecond
	}
	at, err := time.Parse(time.RFC3339, strings.ToUpper(text))
	at = at.UTC().Truncate(time.Microsecond)
	if err != nil || at.Year() < 1 || at.Year() > 9999 {
		return time.Time{}, errNotATime
	}
	return at, nil
}

// methodHasBody reports whether the API reads a body with this method.
func methodHasBody(method string) bool {
	return method == http.MethodPost || method == http.MethodPut || method == http.MethodPatch
}

package httpjson

import (
	"errors"
	"regexp"
	"strings"
	"time"
)

// timePattern matches the date-time of RFC 3339, section 5.6, with T and Z in either case
// and at most nine fractional digits. Its first group is the second.
var timePattern = regexp.MustCompile(`^\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:(\d\d)(?:\.\d{1,9})?(?:[Zz]|[+-](?:[01]\d|2[0-3]):[0-5]\d)$`)

// Errors of parseTime. Each completes a sentence that begins with the name of the field.
var (
	errNotATime   = errors.New("must be an RFC 3339 time in the years 0001 to 9999 with at most nine fractional digits, such as 2026-12-24T09:30:00Z")
	errLeapSecond = errors.New("must not have the second 60, because leap seconds are not supported")
)

// parseTime parses a time of RFC 3339 strictly. It returns the time in UTC, truncated to
// the microseconds that Postgres stores. The error completes a sentence that begins with
// the name of the field.
func parseTime(text string) (time.Time, error) {
	// time.Parse also accepts a comma before the fraction, more fractional digits, an
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

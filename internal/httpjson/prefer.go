package httpjson

import (
	"net/http"
	"strconv"
	"strings"
	"time"
)

// PrefersCount reports whether the Prefer header (RFC 7240) has count=exact.
func PrefersCount(header http.Header) bool {
	value, _ := Preference(header, "count")
	return value == "exact"
}

// PreferredWait returns the value of the preference wait (RFC 7240, section 4.3); 0: there is none, or
// it is malformed. A number that is too large counts as 68 years.
func PreferredWait(header http.Header) time.Duration {
	value, _ := Preference(header, "wait")
	if strings.Trim(value, "0123456789") != "" {
		return 0 // ParseUint may return the maximum before it reads the rest
	}
	seconds, _ := strconv.ParseUint(value, 10, 31) // with an error, 0 or the maximum
	return time.Duration(seconds) * time.Second
}

// Preference returns the value of a preference in the Prefer header (RFC 7240), without
// quotes, and whether the header has the preference. The first one of the name decides. It
// ignores parameters and other preferences (section 2).
func Preference(header http.Header, wanted string) (value string, given bool) {
	for rest := listOf(header["Prefer"], maxList); rest != ""; {
		var preference string
		preference, rest = cutQuoted(rest, ',')
		preference, _ = cutQuoted(preference, ';') // parameters may follow
		name, value, _ := strings.Cut(preference, "=")
		if !strings.EqualFold(strings.Trim(name, " \t"), wanted) {
			continue
		}
		value = strings.Trim(value, " \t")
		if inner, ok := strings.CutPrefix(value, `"`); ok && strings.HasSuffix(inner, `"`) {
			value = strings.TrimSuffix(inner, `"`) // no value that the server knows has an escape
		}
		return value, true
	}
	return "", false
}

// ApplyPreference adds a preference to the header of a response (RFC 7240, section 3).
func ApplyPreference(header http.Header, preference string) {
	if applied := header.Get("Preference-Applied"); applied != "" {
		preference = applied + ", " + preference
	}
	header.Set("Preference-Applied", preference)
}

// cutQuoted cuts a header at the first separator outside of quoted strings (RFC 9110,
// section 5.6.4).
func cutQuoted(field string, separator byte) (before, after string) {
	quoted := false
	for i := 0; i < len(field); i++ {
		switch {
		case field[i] == '"':
			quoted = !quoted
		case quoted && field[i] == '\\':
			i++ // the escaped character
		case !quoted && field[i] == separator:
			return field[:i], field[i+1:]
		}
	}
	return field, ""
}

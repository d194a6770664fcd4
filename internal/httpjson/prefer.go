package httpjson

import (
	"net/http"
	"strings"
)

// PrefersCount reports whether the Prefer header (RFC 7240) has count=exact. The first
// count decides. It ignores parameters and other preferences (section 2).
func PrefersCount(header http.Header) bool {
	for rest := strings.Join(header.Values("Prefer"), ","); rest != ""; {
		var preference string
		preference, rest = cutQuoted(rest, ',')
		preference, _ = cutQuoted(preference, ';') // parameters may follow
		name, value, _ := strings.Cut(preference, "=")
		if strings.EqualFold(strings.Trim(name, " \t"), "count") {
			value = strings.Trim(value, " \t")
			return value == "exact" || value == `"exact"`
		}
	}
	return false
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

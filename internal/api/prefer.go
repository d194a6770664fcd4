package api

import "strings"

// prefersCount reports whether the Prefer fields (RFC 7240) of a request ask for
// count=exact. Of a preference that is given more than once the first counts.
// Other preferences, parameters and what cannot be read are ignored, as section 2
// asks for.
func prefersCount(fields []string) bool {
	for rest := strings.Join(fields, ","); rest != ""; {
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

// cutQuoted cuts a header field at the first separator that is outside of quoted
// strings (RFC 9110, 5.6.4).
func cutQuoted(field string, separator byte) (before, after string) {
	quoted := false
	for i := 0; i < len(field); i++ {
		switch {
		case field[i] == '"':
			quoted = !quoted
		case quoted && field[i] == '\\':
			i++ // whatever it escapes
		case !quoted && field[i] == separator:
			return field[:i], field[i+1:]
		}
	}
	return field, ""
}

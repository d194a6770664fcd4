package exchange

import (
	"encoding/base64"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"petstore/internal/auth"
	"petstore/internal/httpjson"
)

// Redacted replaces a secret.
const Redacted = "[redacted]"

// secrets matches texts with the shape of an API key (package auth) or of the secret of a webhook
// (package standardwebhooks). It also matches a part of one that is a little longer than a display
// prefix. Characters of it may be escaped as in JSON, a URL or a JSON Pointer.
var secrets = regexp.MustCompile(`petstore_[0-9A-Za-z\\%]{11,}[0-9A-Za-z_\\%]*|whsec_[0-9A-Za-z+/_=\\%~-]{8,}`)

// wholeKeys and wholeSecrets match whole secrets, the first only by their length.
var (
	wholeKeys    = regexp.MustCompile(`petstore_[0-9A-Za-z]{36}`)
	wholeSecrets = regexp.MustCompile(`whsec_[0-9A-Za-z+/_=\\%~-]{32,}`)
)

// hasSecret reports whether a text without escapes has a whole secret. Other texts, such as
// petstore_integration_test_1, may only look like a part of one.
func hasSecret(text string) bool {
	return mayHide(text) && (wholeSecrets.MatchString(text) || slices.ContainsFunc(wholeKeys.FindAllString(text, -1), func(key string) bool {
		_, err := auth.ParseSecret(key) // checks the checksum
		return err == nil
	}))
}

// mayHide reports whether a text may have a secret. It costs less than a match.
func mayHide(text string) bool {
	return strings.Contains(text, "petstore_") || strings.Contains(text, "whsec_")
}

// escapes match a character that is escaped in JSON, and a byte that is escaped in a URL.
var escapes = []*regexp.Regexp{regexp.MustCompile(`\\u[0-9a-fA-F]{4}`), regexp.MustCompile(`%[0-9a-fA-F]{2}`)}

// redact replaces the secrets in a text, and also what may be a part of one. If that is there only in an
// escaped form, it replaces the whole text. It reports whether the text has a whole secret.
func redact(text string) (redacted string, found bool) {
	redacted = text
	if mayHide(text) {
		redacted = secrets.ReplaceAllLiteralString(text, Redacted)
	}
	if !strings.ContainsAny(text, `\%`) {
		return redacted, hasSecret(text)
	}
	if rest := decode(redacted); mayHide(rest) && secrets.MatchString(rest) {
		redacted = Redacted
	}
	if redacted == text {
		return text, false
	}
	return redacted, hasSecret(decode(text))
}

// decode replaces the escaped characters in a text, which may be escaped several times.
func decode(text string) string {
	for range 2 * len(escapes) {
		for _, escape := range escapes {
			text = escape.ReplaceAllStringFunc(text, func(code string) string {
				char, _ := strconv.ParseUint(strings.TrimLeft(code, `\u%`), 16, 16)
				return string(rune(char))
			})
		}
	}
	return text
}

// Raw is a message before it is redacted.
type Raw struct {
	Host   string // of a request
	Header http.Header
	Body   []byte // or its beginning; nil: nobody has read it
	Size   int64  // of the body
}

// Describe sets the messages, and removes secrets from them and from the other texts. The prefix
// is the display prefix of the API key. A nil response means that the client got none.
func (e *Exchange) Describe(request Raw, response *Raw, prefix string) error {
	r := redactor{prefix: prefix, places: []string{}}
	e.Method = r.line("request.method", e.Method)
	e.Path = r.line("request.path", e.Path)
	e.Query = r.line("request.query", e.Query)
	e.IdempotencyKey = r.line("request.headers", e.IdempotencyKey)
	e.RequestID = r.line("request.headers", e.RequestID)
	described := Messages{Request: r.message("request", request)}
	if response != nil {
		described.Response = new(r.message("response", *response))
	}
	described.Redacted = r.places
	var err error
	e.Messages, err = httpjson.Encode(described)
	return err
}

// redactor redacts the texts of one exchange.
type redactor struct {
	prefix string   // of the API key
	places []string // where a secret stood
}

// text returns a text from a place without secrets.
func (r *redactor) text(place, text string) string {
	clean, found := redact(text)
	if found && !slices.Contains(r.places, place) {
		r.places = append(r.places, place)
	}
	return clean
}

// line returns a text from a place without secrets and without characters that PostgreSQL does
// not store.
func (r *redactor) line(place, text string) string {
	return strings.ReplaceAll(strings.ToValidUTF8(r.text(place, text), "\uFFFD"), "\x00", "\uFFFD")
}

// message returns a message without secrets.
func (r *redactor) message(place string, raw Raw) Message {
	m := Message{Headers: make([]Header, 0, len(raw.Header)), Size: raw.Size}
	for name, values := range raw.Header {
		for _, value := range values {
			m.Headers = append(m.Headers, Header{r.line(place+".headers", name), r.header(place+".headers", name, value)})
		}
	}
	if raw.Host != "" {
		m.Headers = append(m.Headers, Header{"Host", r.line(place+".headers", raw.Host)})
	}
	slices.SortStableFunc(m.Headers, func(a, b Header) int { return strings.Compare(a.Name, b.Name) })
	m.Body, m.Encoding = r.body(place+".body", raw.Body)
	return m
}

// header returns the value of a header field. Of Authorization, that is the scheme and the
// display prefix of the key.
func (r *redactor) header(place, name, value string) string {
	switch name {
	case "Authorization":
		scheme, _, _ := strings.Cut(value, " ")
		return r.line(place, scheme) + " " + r.prefix + "…"
	case "Proxy-Authorization", "Cookie":
		return Redacted
	default:
		return r.line(place, value)
	}
}

// body returns the beginning of a body without secrets, and how it is encoded.
func (r *redactor) body(place string, body []byte) (text, encoding string) {
	text = r.text(place, string(body))
	isText := utf8.ValidString(text)
	if len(text) > MaxBody {
		text = text[:MaxBody]
		for isText && !utf8.ValidString(text) {
			text = text[:len(text)-1] // a part of a character
		}
	}
	if isText {
		return text, ""
	}
	return base64.StdEncoding.EncodeToString([]byte(text)), "base64"
}

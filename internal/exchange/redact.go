package exchange

import (
	"encoding/base64"
	"net/http"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"petstore/internal/auth"
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
	if strings.IndexByte(text, '\\') < 0 && strings.IndexByte(text, '%') < 0 {
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
func (e *Exchange) Describe(request Raw, response *Raw, prefix string) {
	r := redactor{prefix: prefix, places: []string{}}
	e.Method = r.line("request.method", e.Method)
	e.Path = r.line("request.path", e.Path)
	e.Query = r.line("request.query", e.Query)
	e.IdempotencyKey = r.line("request.headers", e.IdempotencyKey)
	e.RequestID = r.line("request.headers", e.RequestID)
	document := make([]byte, 0, 2<<10)
	document = append(document, `{"request":`...)
	document = r.appendMessage(document, "request", request)
	if response != nil {
		document = append(document, `,"response":`...)
		document = r.appendMessage(document, "response", *response)
	}
	document = append(document, `,"redacted":[`...)
	for i, place := range r.places {
		if i > 0 {
			document = append(document, ',')
		}
		document = appendText(document, place)
	}
	document = append(document, "]}"...)
	e.Messages = document
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

// appendMessage appends the JSON of a [Message], without secrets. Encoding it here costs a third of
// what package json does.
func (r *redactor) appendMessage(document []byte, place string, raw Raw) []byte {
	headers := place + ".headers"
	names := make([]string, 0, 32)
	if raw.Host != "" {
		names = append(names, "Host")
	}
	for name := range raw.Header {
		names = append(names, name)
	}
	slices.Sort(names)
	document = append(document, `{"headers":[`...)
	for _, name := range names {
		values := raw.Header[name]
		if name == "Host" {
			values = []string{raw.Host}
		}
		for _, value := range values {
			document = appendHeader(document, r.line(headers, name), r.header(headers, name, value))
		}
	}
	body, encoding := r.body(place+".body", raw.Body)
	document = appendText(append(document, `],"body":`...), body)
	if encoding != "" {
		document = appendText(append(document, `,"bodyEncoding":`...), encoding)
	}
	document = strconv.AppendInt(append(document, `,"bodySize":`...), raw.Size, 10)
	return append(document, '}')
}

// appendHeader appends the JSON of a [Header].
func appendHeader(document []byte, name, value string) []byte {
	if document[len(document)-1] == '}' {
		document = append(document, ',')
	}
	document = appendText(append(document, `{"name":`...), name)
	document = appendText(append(document, `,"value":`...), value)
	return append(document, '}')
}

// appendText appends the JSON of a text.
func appendText(document []byte, text string) []byte {
	document, _ = jsontext.AppendQuote(document, text) // the error says that it has replaced invalid UTF-8
	return document
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

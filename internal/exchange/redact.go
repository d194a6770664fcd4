package exchange

import (
	"encoding/base64"
	"encoding/binary"
	"encoding/hex"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"unicode/utf8"

	"github.com/go-json-experiment/json/jsontext"

	"petstore/internal/auth"
)

// Redacted replaces a secret.
const Redacted = "[redacted]"

// The prefixes of API keys (package auth) and of the secrets of webhooks (package standardwebhooks).
const (
	keyPrefix     = "petstore_"
	webhookPrefix = "whsec_"
)

// The characters of both besides letters and digits. They may be escaped as in JSON, a URL or a JSON
// Pointer.
const (
	keyChars     = `\%`
	webhookChars = `+/_=\%~-`
)

// cutSecret returns the text before and after the first part with the shape of a secret. It may be only
// the beginning of one, if it is longer than a display prefix. A regular expression would need
// milliseconds for texts that a client chooses.
func cutSecret(text string) (before, after string, found bool) {
	const leastOfKey, leastOfWebhook = 11, 8
	for end := 0; ; { // of a prefix
		next := strings.IndexByte(text[end:], '_')
		if next < 0 {
			return text, "", false
		}
		end += next + 1
		switch rest := text[end:]; {
		case strings.HasSuffix(text[:end], keyPrefix) && span(rest, keyChars) >= leastOfKey:
			return text[:end-len(keyPrefix)], rest[span(rest, keyChars+"_"):], true
		case strings.HasSuffix(text[:end], webhookPrefix) && span(rest, webhookChars) >= leastOfWebhook:
			return text[:end-len(webhookPrefix)], rest[span(rest, webhookChars):], true
		}
	}
}

// replaceSecrets replaces all parts of a text that [cutSecret] finds.
func replaceSecrets(text string) string {
	before, after, found := cutSecret(text)
	if !found {
		return text
	}
	var replaced strings.Builder
	for ; found; before, after, found = cutSecret(after) {
		replaced.WriteString(before + Redacted)
	}
	return replaced.String() + before
}

// span returns the number of letters, digits and other characters with which a text begins.
func span(text, others string) int {
	for i := range len(text) {
		char := text[i]
		isCommon := '0' <= char && char <= '9' || 'A' <= char && char <= 'Z' || 'a' <= char && char <= 'z'
		if !isCommon && strings.IndexByte(others, char) < 0 {
			return i
		}
	}
	return len(text)
}

// hasSecret reports whether a text without escapes has a whole secret. Other texts, such as
// petstore_integration_test_1, may only look like a part of one.
func hasSecret(text string) bool {
	const keyLength, leastOfWebhook = len(keyPrefix) + 36, 32
	for _, rest, found := strings.Cut(text, keyPrefix); found; _, rest, found = strings.Cut(rest, keyPrefix) {
		key := text[len(text)-len(rest)-len(keyPrefix):]
		if _, err := auth.ParseSecret(key[:min(len(key), keyLength)]); err == nil { // checks the checksum
			return true
		}
	}
	for _, rest, found := strings.Cut(text, webhookPrefix); found; _, rest, found = strings.Cut(rest, webhookPrefix) {
		if span(rest, webhookChars) >= leastOfWebhook {
			return true
		}
	}
	return false
}

// redact replaces the secrets in a text, and also what may be a part of one. If that is there only in an
// escaped form, it replaces the whole text. It reports whether the text has a whole secret.
func redact(text string) (redacted string, found bool) {
	redacted = replaceSecrets(text)
	if strings.IndexByte(text, '\\') < 0 && strings.IndexByte(text, '%') < 0 {
		return redacted, redacted != text && hasSecret(text)
	}
	if _, _, isHidden := cutSecret(decode(redacted)); isHidden {
		redacted = Redacted
	}
	if redacted == text {
		return text, false
	}
	return redacted, hasSecret(decode(text))
}

// decode replaces the escaped characters in a text. A character may be escaped any number of times, and
// complete the next escape. So decode looks for an escape after each character of the result.
func decode(text string) string {
	decoded := make([]byte, 0, len(text))
	for i := range len(text) {
		decoded = append(decoded, text[i])
		for found := true; found; {
			decoded, found = unescapeEnd(decoded)
		}
	}
	return string(decoded)
}

// unescapeEnd replaces the escaped character with which a text ends: as %41 in a URL, and as \u0041 or
// \\ in JSON. It reports whether there is one.
func unescapeEnd(text []byte) (unescaped []byte, found bool) {
	var digits int
	start := len(text)
	switch {
	case start >= 2 && text[start-1] == '\\' && text[start-2] == '\\':
		return text[:start-1], true
	case start >= 3 && text[start-3] == '%':
		digits, start = 2, start-3
	case start >= 6 && text[start-6] == '\\' && text[start-5] == 'u':
		digits, start = 4, start-6
	default:
		return text, false
	}
	var char [2]byte
	if _, err := hex.Decode(char[len(char)-digits/2:], text[len(text)-digits:]); err != nil {
		return text, false
	}
	return utf8.AppendRune(text[:start], rune(binary.BigEndian.Uint16(char[:]))), true
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
	body, encoding := r.body(place+".body", raw)
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
func (r *redactor) body(place string, raw Raw) (text, encoding string) {
	clean := r.text(place, string(raw.Body))
	text = clean
	if raw.Size > int64(len(raw.Body)) { // it may be cut within a character
		text = wholeChars(clean)
	}
	if !utf8.ValidString(text) {
		return base64.StdEncoding.EncodeToString([]byte(clean[:min(len(clean), MaxBody)])), "base64"
	}
	return wholeChars(text[:min(len(text), MaxBody)]), ""
}

// wholeChars returns a text without the incomplete character at its end.
func wholeChars(text string) string {
	for start := len(text) - 1; start >= max(0, len(text)-utf8.UTFMax); start-- {
		if !utf8.FullRuneInString(text[start:]) {
			return text[:start]
		}
	}
	return text
}

package exchange

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"

	"github.com/go-json-experiment/json"

	"petstore/internal/auth"
	"petstore/internal/tools/need"
)

// TestRedact: a text with a secret in any form loses it, and other texts stay as they are. Only a
// whole secret is noted.
func TestRedact(t *testing.T) {
	t.Parallel()
	key := auth.NewSecret().Reveal()
	secret := "whsec_" + strings.Repeat("aB+/", 8)
	const hex = "0123456789abcdef0123456789abcdef"
	parts := []string{key[:20], "petstore_" + hex, key[:44] + "!", "whsec_rotation"} // that nobody can use
	for text, want := range map[string]string{
		"":                                    "",
		"100 % of \\ pets":                    "100 % of \\ pets",
		"petstore_ab12CD34 is a prefix":       "petstore_ab12CD34 is a prefix",
		"petstore_checkout_8841":              "petstore_checkout_8841",
		"petstore_sdk_python/1.0":             "petstore_sdk_python/1.0",
		"petstore_" + hex:                     "[redacted]",
		key[:44] + "!":                        "[redacted]!",
		"whsec_rotation":                      "[redacted]",
		"before " + key + " after":            "before [redacted] after",
		key + key:                             "[redacted]",
		key[:20]:                              "[redacted]",
		`{"secret":"` + secret + `"}`:         `{"secret":"[redacted]"}`,
		strings.ReplaceAll(secret, "/", `\/`): "[redacted]",
		"a=" + strings.ReplaceAll(key, "_", "%5F"):                          "[redacted]",
		"a=" + strings.ReplaceAll(key, "_", "%255F"):                        "[redacted]",
		strings.ReplaceAll(key, "_", "%"+strings.Repeat("25", 4)+"5F"):      "[redacted]",
		strings.ReplaceAll(key, "_", "%"+strings.Repeat("25", 39)+"5F"):     "[redacted]",
		strings.ReplaceAll(key, "_", `\\\\u005F`):                           "[redacted]",
		strings.ReplaceAll(key, "p", `\u0070`):                              "[redacted]",
		strings.ReplaceAll(key, "_", `\u005F`):                              "[redacted]",
		"/note%20" + key[:25] + "%" + fmt.Sprintf("%X", key[25]) + key[26:]: "/note%20[redacted]",
		"/" + strings.ReplaceAll(secret, "/", "~1"):                         "/[redacted]",
		"/" + url.PathEscape(secret):                                        "/[redacted]",
		"100%25 " + key + " %41":                                            "100%25 [redacted] %41",
	} {
		got, found := redact(text)
		if got != want || found != (want != text && !slices.Contains(parts, text)) {
			t.Errorf("%q: %q, %t; want %q", text, got, found, want)
		}
	}
}

// TestRedactAllocates: a long text is decoded in one pass, however often its characters are escaped.
func TestRedactAllocates(t *testing.T) { //nolint:paralleltest // AllocsPerRun counts for the whole process
	for _, part := range []string{"%", `\`, "%41", "%25", `\u0025`, "25", "petstore_"} {
		text := "%" + strings.Repeat(part, MaxBody/len(part))
		if got := testing.AllocsPerRun(10, func() { redact(text) }); got > 5 {
			t.Errorf("redacting %d times %s takes %.0f allocations", MaxBody/len(part), part, got)
		}
	}
}

// TestDescribe: the messages of an exchange have the bodies up to a limit, and no credentials.
func TestDescribe(t *testing.T) {
	t.Parallel()
	key := auth.NewSecret()
	long := strings.Repeat("é", MaxBody)
	e := &Exchange{Method: key.Reveal(), Path: "/pets/\xff\x00", Query: "a=" + key.Reveal(), IdempotencyKey: key.Reveal(), RequestID: key.Reveal()}
	e.Describe(Raw{
		Host: "shop", Body: []byte(long), Size: int64(len(long)),
		Header: http.Header{"Authorization": {"Bearer " + key.Reveal()}, "Cookie": {"a=b"}, "X-Two": {"2", "1"}, "X-" + key.Reveal(): {"a"}},
	}, &Raw{Body: []byte("\xff\x00" + key.Reveal()), Size: 47}, key.Prefix())
	var got Messages
	need.OK(t, json.Unmarshal(e.Messages, &got))
	want := Messages{
		Request: Message{
			Headers: []Header{{"Authorization", "Bearer " + key.Prefix() + "…"}, {"Cookie", Redacted}, {"Host", "shop"}, {"X-Two", "2"}, {"X-Two", "1"}, {"X-" + Redacted, "a"}},
			Body:    long[:MaxBody], Size: int64(len(long)),
		},
		Response: &Message{Headers: []Header{}, Body: base64.StdEncoding.EncodeToString([]byte("\xff\x00" + Redacted)), Encoding: "base64", Size: 47},
		Redacted: []string{"request.method", "request.query", "request.headers", "response.body"},
	}
	need.Same(t, want, got, "messages")
	if e.Method != Redacted || e.Path != "/pets/\uFFFD\uFFFD" || e.Query != "a="+Redacted || e.IdempotencyKey != Redacted || e.RequestID != Redacted {
		t.Errorf("the exchange is %+v", e)
	}
}

// TestCutBody: a text of which the recorder gets only the beginning is a text, wherever it is cut. A body
// that has arrived is none if it ends within a character.
func TestCutBody(t *testing.T) {
	t.Parallel()
	text := strings.Repeat("🐈", MaxBody/2)
	for cut := range 4 {
		part := text[:MaxBody+1<<10+cut]
		var e Exchange
		e.Describe(Raw{Body: []byte(part), Size: int64(len(part))}, &Raw{Body: []byte(part), Size: int64(len(text))}, "")
		var got Messages
		need.OK(t, json.Unmarshal(e.Messages, &got))
		if got.Response.Encoding != "" || got.Response.Body != text[:MaxBody] || (got.Request.Encoding != "") != (cut > 0) {
			t.Errorf("%d bytes after a character, the encoding of a cut body is %q, and of another one %q", cut, got.Response.Encoding, got.Request.Encoding)
		}
	}
}

// TestSize: all texts that a client chooses count towards the limits.
func TestSize(t *testing.T) {
	t.Parallel()
	const text = "chosen by the client"
	empty := (&Exchange{}).size()
	for name, e := range map[string]Exchange{
		"request id": {RequestID: text}, "method": {Method: text}, "path": {Path: text}, "query": {Query: text},
		"idempotency key": {IdempotencyKey: text}, "messages": {Messages: []byte(text)},
	} {
		if got := e.size() - empty; got != int64(len(text)) {
			t.Errorf("the %s counts as %d bytes, want %d", name, got, len(text))
		}
	}
}

package report

import (
	"hash/maphash"
	"net/http"
	"strings"

	"github.com/go-json-experiment/json"

	"petstore/internal/exchange"
)

// seed makes the hashes of bodies. They are compared only within this process.
var seed = maphash.MakeSeed()

// SetMessages sets the parts of an exchange that come from its messages, which are the JSON of an
// [exchange.Messages].
func (e *Exchange) SetMessages(text string) error {
	var m exchange.Messages
	if err := json.Unmarshal([]byte(text), &m); err != nil {
		return err
	}
	e.Redacted = m.Redacted
	e.Agent, e.Accept, e.Prefer = values(&m.Request, "User-Agent"), values(&m.Request, "Accept"), values(&m.Request, "Prefer")
	e.IfMatch, e.IfNoneMatch = values(&m.Request, "If-Match"), values(&m.Request, "If-None-Match")
	e.LastEventID, e.ContentType = values(&m.Request, "Last-Event-Id"), values(&m.Request, "Content-Type")
	e.setBody(&m.Request)
	if m.Response != nil {
		e.setResponse(m.Response)
	}
	return nil
}

// values returns the value of a header of a message. Several are a list (RFC 9110, section 5.3).
func values(m *exchange.Message, name string) string {
	var all []string
	for _, h := range m.Headers {
		if h.Name == name {
			all = append(all, h.Value)
		}
	}
	return strings.Join(all, ", ")
}

// setBody identifies the body. It does not know a body that is cut, nor one that nobody has read. Such a
// body has the size 0 if the client did not send its length.
func (e *Exchange) setBody(m *exchange.Message) {
	e.Body = Body{Size: m.Size}
	isEmpty := m.Size == 0 && (e.isRead() || e.Method == http.MethodDelete || values(m, "Content-Length") == "0")
	if m.Size <= exchange.MaxBody && m.Body != "" || isEmpty {
		e.Body.Hash = maphash.String(seed, m.Body) | 1
	}
}

func (e *Exchange) setResponse(m *exchange.Message) {
	e.ETag, e.Link, e.Location = values(m, "Etag"), values(m, "Link"), values(m, "Location")
	e.RateLimit, e.RateLimitPolicy = values(m, "Ratelimit"), values(m, "Ratelimit-Policy")
	e.RetryAfter = parseRetryAfter(values(m, "Retry-After"))
	e.Replayed, e.Deprecated = values(m, "Idempotent-Replayed") != "", values(m, "Deprecation") != ""
	e.IsEmpty = m.Body == "[]" || e.Operation == "getMessage" && strings.Contains(m.Body, `"status":"queued"`)
	e.HasEvents = strings.Contains(m.Body, "\nevent:")
	if e.Code != "validation_failed" && e.Code != "invalid_parameter" || m.Size > exchange.MaxBody {
		return
	}
	var body struct {
		Errors []Violation `json:"errors"`
	}
	if err := json.Unmarshal([]byte(m.Body), &body); err == nil {
		e.Violations = body.Errors
	}
}

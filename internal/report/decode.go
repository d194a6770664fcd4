package report

import (
	"hash/maphash"
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
	for _, h := range m.Request.Headers {
		switch h.Name {
		case "User-Agent":
			e.Agent = h.Value
		case "Accept":
			e.Accept = h.Value
		case "Prefer":
			e.Prefer = strings.Trim(e.Prefer+", "+h.Value, ", ")
		case "If-Match":
			e.IfMatch = h.Value
		case "If-None-Match":
			e.IfNoneMatch = h.Value
		case "Last-Event-Id":
			e.LastEventID = h.Value
		}
	}
	e.Body = bodyOf(m.Request)
	if m.Response != nil {
		e.setResponse(m.Response)
	}
	return nil
}

// bodyOf identifies a body. It does not know a body that is cut, nor one that nobody has read.
func bodyOf(m exchange.Message) Body {
	body := Body{Size: m.Size}
	if m.Size <= exchange.MaxBody && (m.Body != "" || m.Size == 0) {
		body.Hash = maphash.String(seed, m.Body) | 1
	}
	return body
}

func (e *Exchange) setResponse(m *exchange.Message) {
	for _, h := range m.Headers {
		switch h.Name {
		case "Etag":
			e.ETag = h.Value
		case "Link":
			e.Link = strings.Trim(e.Link+", "+h.Value, ", ")
		case "Location":
			e.Location = h.Value
		case "Ratelimit":
			e.RateLimit = h.Value
		case "Ratelimit-Policy":
			e.RateLimitPolicy = h.Value
		case "Retry-After":
			e.RetryAfter = parseRetryAfter(h.Value)
		case "Idempotent-Replayed":
			e.Replayed = true
		case "Deprecation":
			e.Deprecated = true
		}
	}
	e.IsEmpty = m.Body == "[]" || e.Operation == "getMessage" && strings.Contains(m.Body, `"status":"queued"`)
	e.HasEvents = e.streams() && strings.Contains(m.Body, "\nevent:")
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

package gate

import (
	"context"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"

	"petstore/internal/exchange"
	"petstore/internal/httpjson"
)

// captured is a response that the record of a sandbox gets too.
type captured struct {
	gin.ResponseWriter

	request *request
	isGone  bool   // whether the client disconnected before the response
	body    []byte // the beginning
	size    int64
	full    bool // whether body is decoded, and so has everything
}

// captureBytes is the number of bytes of a response that captured keeps. It is more than the
// record has, so that it finds a secret that begins within.
const captureBytes = exchange.MaxBody + 1<<10

// redactionWait is the longest wait for a place to redact a large body. The client waits too.
const redactionWait = time.Second

// observes reports whether a request comes from an observer of a sandbox instead of the client
// that is under test. It leaves no trace in the record and in the counts of fault rules.
func observes(request *http.Request) bool { return request.Header.Get("Petstore-Observer") == "true" }

// capture keeps the response to a request, which may be one of a sandbox, for the record.
func (g *Gate) capture(c *gin.Context) {
	state := requestOf(c)
	if g.api.Recorder != nil && state.sent == nil && !state.route.has(NoRecord) && !observes(c.Request) {
		state.sent = &captured{ResponseWriter: c.Writer, request: state}
		c.Writer = state.sent
	}
}

// keep adds a part of the body.
func (r *captured) keep(part []byte) {
	if r.full {
		return
	}
	r.size += int64(len(part))
	if rest := captureBytes - len(r.body); rest > 0 {
		r.body = append(r.body, part[:min(len(part), rest)]...)
	}
}

// decoded sets the body of a response that is compressed. A nil response is not recorded.
func (r *captured) decoded(body []byte) {
	if r != nil {
		r.keep(body)
		r.full = true
	}
}

// begin notes whether the client has disconnected, unless the response has begun.
func (r *captured) begin() {
	if !r.Written() {
		r.isGone = r.request.connection.Err() != nil
	}
}

// Write writes a part of the body.
func (r *captured) Write(part []byte) (int, error) {
	r.begin()
	r.keep(part)
	return r.ResponseWriter.Write(part)
}

// WriteString writes a part of the body.
func (r *captured) WriteString(part string) (int, error) {
	r.begin()
	r.keep([]byte(part))
	return r.ResponseWriter.WriteString(part)
}

// Unwrap returns the response, for [http.ResponseController].
func (r *captured) Unwrap() http.ResponseWriter { return r.ResponseWriter }

// record adds a request of a sandbox to its record.
func (g *Gate) record(c *gin.Context, took time.Duration) {
	state := requestOf(c)
	if g.api.Recorder == nil || state.route.has(NoRecord) || observes(c.Request) {
		return
	}
	identity, operation := state.identity, state.route.Operation
	if state.code == ErrRouteNotFound.Code {
		operation = "" // the path may match a route, but be no text
	}
	if !state.isKnown() && (state.code == ErrRouteNotFound.Code || state.code == ErrMethodNotAllowed.Code || state.code == ErrOperationSunset.Code) {
		// These errors come before the check of the key. If it is one of a sandbox, its owner wants to see the mistake.
		if credentials, err := credentialsOf(c.Request); err == nil {
			identity, _ = g.options.Verifier.Remembered(credentials)
		}
	}
	if !identity.IsSandbox() {
		return
	}
	if isCounted := state.isKnown() && state.code != ErrRateLimited.Code; !isCounted && !g.uncounted.Take(identity.Payer(), 1).Taken {
		g.api.Recorder.Drop(identity.AccountID)
		return
	}
	r := c.Request
	e := &exchange.Exchange{
		Account: identity.AccountID, Payer: identity.Payer(), Began: state.began, Took: took, RequestID: state.id, APIKeyID: identity.KeyID,
		Method: r.Method, Path: r.URL.EscapedPath(), Query: r.URL.RawQuery, Operation: operation, Code: state.code,
		IdempotencyKey: r.Header.Get("Idempotency-Key"),
	}
	size := max(r.ContentLength, int64(len(state.body)))
	if state.code == httpjson.ErrBodyTooLarge.Code { // nobody knows how large a chunked body is
		size = max(size, g.options.MaxBodyBytes+1)
	}
	request := exchange.Raw{Host: r.Host, Header: r.Header, Body: state.body, Size: size}
	var response *exchange.Raw
	if state.injected != nil {
		e.Fault = state.injected.String()
	}
	sent := state.sent
	_, isCut := c.Writer.(discarded)
	if sent != nil {
		sent.begin() // a response without a body begins after this
		isCut = isCut || sent.isGone
	}
	if status := c.Writer.Status(); !isCut && status != statusClosed && status != statusClientGone {
		e.Status = status
		response = &exchange.Raw{Header: c.Writer.Header()}
		if sent != nil && r.Method != http.MethodHead {
			response.Body, response.Size = sent.body, sent.size
		}
	}
	if len(state.body) >= largeBody { // redacting takes as long as decoding
		limited, cancel := context.WithTimeout(context.WithoutCancel(r.Context()), redactionWait)
		defer cancel()
		_ = state.reserved.take(limited, g.Limits.Decodings, 1) // on an error, redact without a place
		defer g.Decoded(c)
	}
	e.Describe(request, response, identity.Prefix)
	g.api.Recorder.Add(e)
}

package gate

import (
	"time"

	"github.com/gin-gonic/gin"

	"petstore/internal/httpjson"
)

// largeBody is the size in bytes from which on bodies are decoded one after the other. That may take
// milliseconds.
const largeBody = 4 << 10

// ReadBody returns the whole body of a request, and then counts the request among those in
// progress. Call it after all other checks of the request, and [Gate.Decoded] after decoding.
func (g *Gate) ReadBody(c *gin.Context) ([]byte, error) {
	body, err := g.receiveBody(c)
	if err != nil {
		return nil, err
	}
	if err := g.CheckKey(c); err != nil { // the body may have taken seconds
		return nil, err
	}
	ctx, reserved := c.Request.Context(), &requestOf(c).reserved
	if err := reserved.take(ctx, g.Limits.requests, 1); err != nil {
		return nil, err
	}
	if len(body) < largeBody {
		return body, nil
	}
	if err := reserved.take(ctx, g.Limits.Decodings, 1); err != nil {
		return nil, err
	}
	return body, g.CheckKey(c) // again, after a wait
}

// Decoded lets the next large body of the payer be decoded. A second call has no effect.
func (g *Gate) Decoded(c *gin.Context) { requestOf(c).reserved.reduce(g.Limits.Decodings, 0) }

// BodyIsOptional reports whether the request may omit its body.
func BodyIsOptional(c *gin.Context) bool { return requestOf(c).route.has(OptionalBody) }

// receiveBody returns the whole body of a request, which it reads once.
func (g *Gate) receiveBody(c *gin.Context) ([]byte, error) {
	state := requestOf(c)
	if state.bodyRead {
		return state.body, nil
	}
	size := c.Request.ContentLength
	if size > g.options.MaxBodyBytes {
		return nil, httpjson.TooLarge(g.options.MaxBodyBytes)
	}
	if size < 0 { // unknown
		size = g.options.MaxBodyBytes
	}
	ctx, payer := c.Request.Context(), state.reserved.payer
	if err := g.Limits.bodies.Take(ctx, payer, 1); err != nil {
		return nil, err
	}
	defer g.Limits.bodies.Give(payer, 1)
	if err := state.reserved.take(ctx, g.Limits.bodyBytes, size); err != nil {
		return nil, err
	}
	began := time.Now()
	body, err := httpjson.ReadBody(c.Writer, c.Request, g.options.MaxBodyBytes)
	state.received = time.Since(began)
	if err != nil {
		return nil, err
	}
	state.reserved.reduce(g.Limits.bodyBytes, int64(len(body)))
	state.body, state.bodyRead = body, true
	g.extendDeadline(c, state.received)
	return body, nil
}

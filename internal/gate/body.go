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
	if err := g.reservePlace(c); err != nil {
		return nil, err
	}
	if len(body) < largeBody {
		return body, nil
	}
	if err := g.Limits.beginDecoding(c.Request.Context(), &requestOf(c).reserved); err != nil {
		return nil, err
	}
	return body, g.CheckKey(c) // again, after a wait
}

// Decoded lets the next large body of the payer be decoded. A second call has no effect.
func (g *Gate) Decoded(c *gin.Context) { g.Limits.endDecoding(&requestOf(c).reserved) }

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
	arrived, err := g.Limits.reserveBody(c.Request.Context(), &state.reserved, size)
	if err != nil {
		return nil, err
	}
	defer arrived()
	began := time.Now()
	body, err := httpjson.ReadBody(c.Writer, c.Request, g.options.MaxBodyBytes)
	if err != nil {
		return nil, err
	}
	g.Limits.returnUnused(&state.reserved, size-int64(len(body)))
	state.body, state.bodyRead = body, true
	g.extendDeadline(c, time.Since(began))
	return body, nil
}

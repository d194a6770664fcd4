package api

import (
	"time"

	"github.com/gin-gonic/gin"

	"petstore/internal/auth"
	"petstore/internal/gate"
	"petstore/internal/httpjson"
)

// Maximum lengths in code points, and maximum quantities. openapi.yaml, the CHECKs of the tables and
// package transfer have the same. The maximum of names is [petstore/internal/casefold.MaxName].
const (
	maxDescriptionLength = 2000
	maxMessageLength     = 4000
	maxAPIKeyNameLength  = 100
	maxOrderQuantity     = 1_000_000
	maxStockQuantity     = 1_000_000_000
)

// input is the decoded request of an operation with a body. Read all fields, then call
// Err.
type input struct {
	*httpjson.Object

	body           []byte
	idempotencyKey string // of a POST, if it has one
	decoded        func() // [gate.Gate.Decoded]
}

// Err returns everything that is wrong with the request, after all fields are read.
func (in *input) Err() error {
	defer in.decoded()
	return in.Object.Err()
}

// decodeOption says what an operation accepts.
type decodeOption func(*decoder)

type decoder struct {
	required, readOnly []string
	keyed, secret      bool
}

// required names the fields that the body must have.
func required(names ...string) decodeOption { return func(d *decoder) { d.required = names } }

// readOnly names the fields of the resource that only the server sets.
func readOnly(names ...string) decodeOption { return func(d *decoder) { d.readOnly = names } }

// keyed reads the Idempotency-Key, under which the write takes effect once.
func keyed(d *decoder) { d.keyed = true }

// secret rejects an Idempotency-Key, because the response has a secret, and the server
// never stores one.
func secret(d *decoder) { d.secret = true }

// decode reads the parameters, the Idempotency-Key and then the body of a request. An
// error is the result of Err of the input.
func (s *Server) decode(c *gin.Context, options ...decodeOption) *input {
	var d decoder
	for _, option := range options {
		option(&d)
	}
	in := &input{decoded: func() { s.gate.Decoded(c) }}
	if err := s.receive(c, &d, in); err != nil {
		in.Object = httpjson.Failed(err)
		return in
	}
	if len(in.body) == 0 && gate.BodyIsOptional(c) {
		in.Object = &httpjson.Object{}
		return in
	}
	in.Object = httpjson.ParseObject(in.body)
	in.Require(d.required...)
	in.ReadOnly(d.readOnly...)
	return in
}

// receive reads the Idempotency-Key and the body of a request, and reserves a place among the
// requests in progress.
func (s *Server) receive(c *gin.Context, d *decoder, in *input) (err error) {
	if d.keyed || d.secret {
		if in.idempotencyKey, err = idempotencyKey(c.Request, d.secret); err != nil {
			return err
		}
	}
	in.body, err = s.gate.ReadBody(c)
	if err == nil && len(in.body) > 0 && !httpjson.IsJSON(c.Request) { // its length was unknown
		err = httpjson.ErrUnsupportedContentType
	}
	return err
}

// grace reads how long a replaced secret keeps working.
func (in *input) grace() time.Duration {
	seconds := in.Integer("graceSeconds", 0, int64(auth.MaxGrace/time.Second))
	if seconds == nil {
		return 0
	}
	return time.Duration(*seconds) * time.Second
}

// readParams begins to read the parameters of a request.
func readParams(c *gin.Context) *httpjson.Params {
	return httpjson.ParseParams(c.Request.URL.RawQuery, c.Param)
}

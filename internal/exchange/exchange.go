// Package exchange keeps the record of the requests of sandboxes: each request with its
// response, as the client sent and got them, without secrets.
//
// A request adds its exchange to a buffer of the process and goes on. Twenty times a second, one
// statement writes the buffer for all sandboxes, without waiting for the disk. So a killed process
// loses a tenth of a second, and a crash of PostgreSQL loses the last 0.6 seconds.
// If the buffer is full, an exchange is dropped and counted. So is one beyond the rate of its payer
// (package gate). Writing the record never delays a request or makes one fail. Redacting a large body may
// delay its request, by up to a second.
package exchange

import "time"

// The limits of the record of a sandbox. The oldest exchanges go first.
const (
	MaxExchanges = 5000
	MaxBytes     = 16 << 20
	MaxAge       = 24 * time.Hour // the queries have it too
)

// MaxBody is the maximum number of bytes of a body in the record.
const MaxBody = 16 << 10

// Exchange is a request with its response.
type Exchange struct {
	Account int64 // the sandbox
	Payer   int64
	Began   time.Time
	Took    time.Duration
	// RequestID is the header X-Request-Id of the response.
	RequestID      string
	APIKeyID       int64
	Method         string
	Path           string // encoded
	Query          string // encoded
	Operation      string // "": the path does not exist
	Status         int    // of the response; 0: the client got none
	Code           string // of the error; "": none
	IdempotencyKey string
	Fault          string // index of the rule, slash, effect; "": none
	Messages       []byte // the JSON of a [Messages]; [Exchange.Describe] sets it
}

// size returns the number of bytes that count towards the limits.
func (e *Exchange) size() int64 {
	const others = 200 // the columns of fixed size, the tuple header and the index
	return int64(others + len(e.RequestID) + len(e.Method) + len(e.Path) + len(e.Query) + len(e.Operation) + len(e.IdempotencyKey) + len(e.Messages))
}

// Messages has the request as the client sent it, and the response as the client got it.
type Messages struct {
	Request  Message  `json:"request"`
	Response *Message `json:"response,omitempty"` // nil: the client got none
	// Redacted names the places where a secret stood that does not belong there, such as
	// request.query.
	Redacted []string `json:"redacted"`
}

// Message is a request or a response.
type Message struct {
	Headers []Header `json:"headers"` // by name
	// Body is the beginning of the body, up to [MaxBody] bytes. It is in Base64 if it is not
	// UTF-8 text.
	Body     string `json:"body"`
	Encoding string `json:"bodyEncoding,omitempty"`
	Size     int64  `json:"bodySize"` // of the whole body, as openapi.yaml says
}

// Header is one header field.
type Header struct {
	Name  string `json:"name"`
	Value string `json:"value"`
}

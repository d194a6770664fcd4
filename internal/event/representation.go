package event

import (
	"time"

	"github.com/go-json-experiment/json/jsontext"
)

// Representation is the Event schema of the spec, which the feed, the stream and webhooks
// have in common.
type Representation struct {
	ID        string         `json:"id"`
	Sequence  int64          `json:"sequence"`
	Type      string         `json:"type"`
	Timestamp time.Time      `json:"timestamp"`
	Subject   string         `json:"subject"`
	Data      jsontext.Value `json:"data"`
}

// Message is the Message schema of the spec.
type Message struct {
	ID        string    `json:"id"`
	Message   string    `json:"message"`
	Status    string    `json:"status"`
	CreatedAt time.Time `json:"createdAt"`
}

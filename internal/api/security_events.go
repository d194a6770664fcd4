package api

import (
	"log/slog"
	"net/http"

	"github.com/gin-gonic/gin"

	"petstore/internal/auth"
)

// The events that an operator searches the log for. docs/security.md lists them.
const (
	eventAuthenticationFailed = "authentication_failed"
	eventAccessDenied         = "access_denied"
	eventRateLimited          = "rate_limited"
	eventKeyCreated           = "api_key_created"
	eventKeyRotated           = "api_key_rotated"
	eventKeyRevoked           = "api_key_revoked"
)

// keyEvent is a change of an API key.
type keyEvent struct {
	name        string
	targetKeyID int64
}

// recordKeyEvent has the log line of the request say what it did to an API key.
func recordKeyEvent(c *gin.Context, name string, targetKeyID int64) {
	c.Set(eventKey, keyEvent{name, targetKeyID})
}

// securityAttributes returns what the log line of a request says about its security
// event: nil if there is none. They are part of that line, so that a flood of
// refused requests writes no more lines than any other.
func securityAttributes(c *gin.Context) []slog.Attr {
	change, _ := c.Value(eventKey).(keyEvent)
	event := change.name
	switch c.Writer.Status() {
	case http.StatusUnauthorized:
		event = eventAuthenticationFailed
	case http.StatusForbidden:
		event = eventAccessDenied
	case http.StatusTooManyRequests:
		event = eventRateLimited
	}
	if event == "" {
		return nil
	}
	attributes := []slog.Attr{slog.String("event", event), slog.String("client", c.ClientIP())}
	if identity, known := c.Value(identityKey).(auth.Identity); known {
		attributes = append(attributes, slog.Int64("account_id", identity.AccountID), slog.Int64("key_id", identity.KeyID))
	}
	if change.targetKeyID != 0 {
		attributes = append(attributes, slog.Int64("target_key_id", change.targetKeyID))
	}
	return attributes
}

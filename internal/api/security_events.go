package api

import (
	"log/slog"
	"net/http"

	"github.com/gin-gonic/gin"

	"petstore/internal/account"
	"petstore/internal/auth"
)

// Security events in the log. docs/security.md lists them.
const (
	eventAuthenticationFailed = "authentication_failed"
	eventAccessDenied         = "access_denied"
	eventRateLimited          = "rate_limited"
	eventKeyCreated           = "api_key_created"
	eventKeyRotated           = "api_key_rotated"
	eventKeyRevoked           = "api_key_revoked"
	eventSandboxCreated       = "sandbox_created"
	eventSandboxReset         = "sandbox_reset"
	eventSandboxDeleted       = "sandbox_deleted"
	eventWebhookCreated       = "webhook_created"
	eventWebhookUpdated       = "webhook_updated"
	eventWebhookDeleted       = "webhook_deleted"
	eventWebhookRotated       = "webhook_rotated"
)

// changeEvent is a change of an API key, of a sandbox or of a webhook.
type changeEvent struct {
	name   string
	target slog.Attr
}

// recordKeyEvent adds a change of an API key to the log line of the request.
func recordKeyEvent(c *gin.Context, name string, targetKeyID int64) {
	c.Set(eventKey, changeEvent{name, slog.Int64("target_key_id", targetKeyID)})
}

// recordSandboxEvent adds a change of a sandbox to the log line of the request.
func recordSandboxEvent(c *gin.Context, name string, targetAccountID int64) {
	c.Set(eventKey, changeEvent{name, slog.String("target_account_id", account.PublicID(targetAccountID, true))})
}

// recordWebhookEvent adds a change of a webhook to the log line of the request.
func recordWebhookEvent(c *gin.Context, name, targetID string) {
	c.Set(eventKey, changeEvent{name, slog.String("target_webhook_id", targetID)})
}

// securityAttributes returns the attributes of the security event of a request, or nil
// if there is none. They are part of its log line, so that a flood of rejected requests
// writes no additional lines.
func securityAttributes(c *gin.Context) []slog.Attr {
	change, _ := c.Value(eventKey).(changeEvent)
	event := change.name
	if injected := injectionOf(c); injected != nil && injected.replacesResponse() {
		return nil
	}
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
		attributes = append(attributes, slog.String("account_id", account.PublicID(identity.AccountID, identity.IsSandbox())), slog.Int64("key_id", identity.KeyID))
	}
	if change.name != "" {
		attributes = append(attributes, change.target)
	}
	return attributes
}

package api

import (
	"log/slog"

	"petstore/internal/account"
	"petstore/internal/gate"
)

// Security events in the log about changes. docs/observability.md lists them.
const (
	eventKeyCreated     = "api_key_created"
	eventKeyRotated     = "api_key_rotated"
	eventKeyRevoked     = "api_key_revoked"
	eventSandboxCreated = "sandbox_created"
	eventSandboxReset   = "sandbox_reset"
	eventSandboxDeleted = "sandbox_deleted"
	eventSampleSaved    = "sample_saved"
	eventSampleDeleted  = "sample_deleted"
	eventWebhookCreated = "webhook_created"
	eventWebhookUpdated = "webhook_updated"
	eventWebhookDeleted = "webhook_deleted"
	eventWebhookRotated = "webhook_rotated"
)

// keyEvent is a change of an API key.
func keyEvent(name string, id int64) gate.Change {
	return gate.Change{Event: name, Target: slog.Int64("target_key_id", id)}
}

// sandboxEvent is a change of a sandbox.
func sandboxEvent(name string, accountID int64) gate.Change {
	return gate.Change{Event: name, Target: slog.String("target_account_id", account.PublicID(accountID, true))}
}

// sampleEvent is a change of a sample.
func sampleEvent(event, name string) gate.Change {
	return gate.Change{Event: event, Target: slog.String("target_sample", name)}
}

// webhookEvent is a change of a webhook.
func webhookEvent(name, id string) gate.Change {
	return gate.Change{Event: name, Target: slog.String("target_webhook_id", id)}
}

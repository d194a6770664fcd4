-- +goose Up
-- The messages of an account that wait for their delivery.
CREATE INDEX messages_queued_idx ON messages (account_id, id) WHERE status = 'queued';

-- The messages of all accounts that wait. The sweep ends those that have waited too long.
CREATE INDEX messages_expiry_idx ON messages (created_at, account_id, id) WHERE status = 'queued';

-- The webhooks to which the worker adapts the messages that wait.
CREATE INDEX webhooks_unsettled_idx ON webhooks (account_id, id) WHERE unsettled_after IS NOT NULL;

-- The deliveries of a message.
CREATE INDEX webhook_deliveries_message_idx ON webhook_deliveries (account_id, sequence) WHERE type = 'message.queued';

-- The event of a message.
CREATE INDEX events_message_idx ON events (account_id, subject) WHERE type = 'message.queued';

-- +goose Down
DROP INDEX events_message_idx;
DROP INDEX webhook_deliveries_message_idx;
DROP INDEX webhooks_unsettled_idx;
DROP INDEX messages_expiry_idx;
DROP INDEX messages_queued_idx;

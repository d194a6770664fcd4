-- +goose Up
-- The messages that wait for their delivery. The sweep ends those that have waited too long.
CREATE INDEX messages_queued_idx ON messages (account_id, id) WHERE status = 'queued';

-- The deliveries of a message.
CREATE INDEX webhook_deliveries_message_idx ON webhook_deliveries (account_id, sequence) WHERE type = 'message.queued';

-- The event of a message.
CREATE INDEX events_message_idx ON events (account_id, subject) WHERE type = 'message.queued';

-- +goose Down
DROP INDEX events_message_idx;
DROP INDEX webhook_deliveries_message_idx;
DROP INDEX messages_queued_idx;

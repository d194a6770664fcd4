-- +goose Up
-- Foreign keys need distributed tables on Citus, so the tables are in earlier migrations.
-- Deliveries refer to their webhook only, so that an insert does not lock account_state,
-- which every write to the store updates.
ALTER TABLE webhooks ADD CONSTRAINT webhooks_account_id_fkey FOREIGN KEY (account_id) REFERENCES account_state (account_id);

ALTER TABLE webhook_deliveries ADD CONSTRAINT webhook_deliveries_webhook_id_fkey FOREIGN KEY (account_id, webhook_id) REFERENCES webhooks (account_id, id);

-- +goose Down
ALTER TABLE webhook_deliveries DROP CONSTRAINT webhook_deliveries_webhook_id_fkey;

ALTER TABLE webhooks DROP CONSTRAINT webhooks_account_id_fkey;

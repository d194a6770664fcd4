-- +goose Up
-- An order that is completed and a message or delivery that is settled leave a dead entry at the start of an index.
-- Each read of the open ones passes all of these until VACUUM removes them, by default after changes of 20 % of the
-- table. Below 2 %, VACUUM may leave the indexes as they are.
SET LOCAL lock_timeout = '2s';
ALTER TABLE orders SET (autovacuum_vacuum_scale_factor = 0.03);
ALTER TABLE messages SET (autovacuum_vacuum_scale_factor = 0.03);
ALTER TABLE webhook_deliveries SET (autovacuum_vacuum_scale_factor = 0.03);

-- +goose Down
SET LOCAL lock_timeout = '2s';
ALTER TABLE orders RESET (autovacuum_vacuum_scale_factor);
ALTER TABLE messages RESET (autovacuum_vacuum_scale_factor);
ALTER TABLE webhook_deliveries RESET (autovacuum_vacuum_scale_factor);

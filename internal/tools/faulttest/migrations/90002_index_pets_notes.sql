-- +goose NO TRANSACTION
-- +goose Up
CREATE INDEX CONCURRENTLY pets_notes_idx ON pets (account_id, notes) WHERE notes IS NOT NULL;

-- +goose Down
DROP INDEX CONCURRENTLY pets_notes_idx;

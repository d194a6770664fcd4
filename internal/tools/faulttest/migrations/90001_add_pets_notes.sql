-- +goose Up
SET LOCAL lock_timeout = '2s';
ALTER TABLE pets ADD COLUMN notes text;

-- +goose Down
SET LOCAL lock_timeout = '2s';
ALTER TABLE pets DROP COLUMN notes;

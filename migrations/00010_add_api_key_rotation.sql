-- +goose Up
SET LOCAL lock_timeout = '5s';

ALTER TABLE api_keys
    ADD COLUMN previous_sha256 bytea,
    ADD COLUMN previous_until  timestamptz,
    ADD CONSTRAINT api_keys_previous_sha256_key   UNIQUE (previous_sha256),
    ADD CONSTRAINT api_keys_previous_sha256_check CHECK (octet_length(previous_sha256) = 32),
    ADD CONSTRAINT api_keys_previous_check        CHECK ((previous_sha256 IS NULL) = (previous_until IS NULL));

COMMENT ON COLUMN api_keys.previous_sha256 IS 'SHA-256 of the previous secret, if it was rotated with a grace; otherwise NULL.';
COMMENT ON COLUMN api_keys.previous_until  IS 'When the previous secret stops working.';

-- +goose Down
SET LOCAL lock_timeout = '5s';

ALTER TABLE api_keys
    DROP COLUMN previous_sha256,
    DROP COLUMN previous_until;

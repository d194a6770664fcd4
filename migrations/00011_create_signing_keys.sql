-- +goose Up
CREATE TABLE signing_keys (
    purpose text  NOT NULL,
    secret  bytea NOT NULL,

    CONSTRAINT signing_keys_pkey         PRIMARY KEY (purpose),
    CONSTRAINT signing_keys_secret_check CHECK (octet_length(secret) >= 32)
);

-- gen_random_uuid is the only cryptographic random source of PostgreSQL without an
-- extension. Two UUIDs have 244 random bits.
INSERT INTO signing_keys (purpose, secret)
VALUES ('cursor', sha256(uuid_send(gen_random_uuid()) || uuid_send(gen_random_uuid())));

COMMENT ON TABLE  signing_keys         IS 'Random keys that all processes share, created by the migration.';
COMMENT ON COLUMN signing_keys.purpose IS 'cursor: authenticates the cursors of lists (HMAC-SHA-256). The key of consistency tokens is derived from it.';

-- +goose Down
DROP TABLE signing_keys;

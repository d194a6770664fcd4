-- +goose Up
CREATE TABLE api_keys (
    id            bigint GENERATED ALWAYS AS IDENTITY (MAXVALUE 9007199254740991),
    account_id    bigint NOT NULL,
    name          text   NOT NULL,
    scope         text   NOT NULL,
    prefix        text   NOT NULL,
    secret_sha256 bytea  NOT NULL,
    created_at    timestamptz NOT NULL DEFAULT now(),
    expires_at    timestamptz,
    last_used_at  timestamptz,
    revoked_at    timestamptz,

    CONSTRAINT api_keys_pkey                PRIMARY KEY (id),
    CONSTRAINT api_keys_account_id_fkey     FOREIGN KEY (account_id) REFERENCES accounts (id),
    CONSTRAINT api_keys_secret_sha256_key   UNIQUE (secret_sha256),
    CONSTRAINT api_keys_name_check          CHECK (char_length(name) BETWEEN 1 AND 100),
    CONSTRAINT api_keys_scope_check         CHECK (scope IN ('read', 'write', 'admin')),
    CONSTRAINT api_keys_secret_sha256_check CHECK (octet_length(secret_sha256) = 32)
);

CREATE INDEX api_keys_account_idx ON api_keys (account_id, id);
CREATE INDEX api_keys_prefix_idx  ON api_keys (prefix);

COMMENT ON TABLE  api_keys               IS 'API keys. The secret is not stored: it is shown once, when the key is created.';
COMMENT ON COLUMN api_keys.name          IS 'A label for people.';
COMMENT ON COLUMN api_keys.scope         IS 'admin includes write, write includes read.';
COMMENT ON COLUMN api_keys.prefix        IS 'The first characters of the secret, by which people tell keys apart.';
COMMENT ON COLUMN api_keys.secret_sha256 IS 'SHA-256 of the secret. Secrets have 178 random bits, so a slow hash would not add security.';
COMMENT ON COLUMN api_keys.last_used_at  IS 'Written at most once a minute.';
COMMENT ON COLUMN api_keys.revoked_at    IS 'Set once. Every change is announced on the channel api_keys (see queries/api_keys.sql).';

-- +goose Down
DROP TABLE api_keys;

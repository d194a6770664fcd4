-- +goose Up
CREATE TABLE idempotency_keys (
    account_id  bigint NOT NULL,
    api_key_id  bigint NOT NULL,
    key         text   COLLATE "C" NOT NULL,
    fingerprint bytea  NOT NULL,
    status      integer NOT NULL,
    location    text   NOT NULL,
    body        bytea  NOT NULL,
    created_at  timestamptz NOT NULL DEFAULT now(),

    CONSTRAINT idempotency_keys_pkey              PRIMARY KEY (account_id, api_key_id, key),
    CONSTRAINT idempotency_keys_api_key_id_fkey   FOREIGN KEY (account_id, api_key_id) REFERENCES api_keys (account_id, id),
    CONSTRAINT idempotency_keys_key_check         CHECK (char_length(key) BETWEEN 1 AND 255),
    CONSTRAINT idempotency_keys_fingerprint_check CHECK (octet_length(fingerprint) = 32),
    CONSTRAINT idempotency_keys_status_check      CHECK (status BETWEEN 200 AND 299)
);

-- For the query IdempotencyKeySweep.
CREATE INDEX idempotency_keys_created_at_idx ON idempotency_keys (created_at);

COMMENT ON TABLE  idempotency_keys             IS 'Responses to POST requests with an Idempotency-Key, each written in the same transaction as its effect and kept 24 hours.';
COMMENT ON COLUMN idempotency_keys.account_id  IS 'The account that the row belongs to.';
COMMENT ON COLUMN idempotency_keys.key         IS 'As the client sent it.';
COMMENT ON COLUMN idempotency_keys.fingerprint IS 'SHA-256 of the path and the body. A different request with the same key is an error.';
COMMENT ON COLUMN idempotency_keys.status      IS 'The status of the response. Only successful responses are stored.';
COMMENT ON COLUMN idempotency_keys.location    IS 'The Location header of the response.';

-- +goose Down
DROP TABLE idempotency_keys;

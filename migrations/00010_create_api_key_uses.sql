-- +goose Up
CREATE TABLE api_key_uses (
    account_id   bigint NOT NULL,
    api_key_id   bigint NOT NULL,
    last_used_at timestamptz NOT NULL,

    CONSTRAINT api_key_uses_pkey            PRIMARY KEY (account_id, api_key_id),
    CONSTRAINT api_key_uses_api_key_id_fkey FOREIGN KEY (account_id, api_key_id) REFERENCES api_keys (account_id, id)
);

COMMENT ON TABLE  api_key_uses              IS 'When API keys were last used. It is not part of api_keys, because on a sharded cluster a write to a reference table is expensive.';
COMMENT ON COLUMN api_key_uses.account_id   IS 'The account that the row belongs to.';
COMMENT ON COLUMN api_key_uses.last_used_at IS 'Written at most once a minute.';

-- +goose Down
DROP TABLE api_key_uses;

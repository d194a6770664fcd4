-- +goose Up
CREATE TABLE account_state (
    account_id bigint  NOT NULL,
    closed     boolean NOT NULL DEFAULT false,
    reset_at   timestamptz,

    CONSTRAINT account_state_pkey            PRIMARY KEY (account_id),
    CONSTRAINT account_state_account_id_fkey FOREIGN KEY (account_id) REFERENCES accounts (id)
);

COMMENT ON TABLE  account_state          IS 'One row per account, in the shard of the account. Advisory locks of the account are taken through it (see queries/sandboxes.sql).';
COMMENT ON COLUMN account_state.closed   IS 'True if the account is being deleted. No write of a sandbox and no sample data is accepted any more.';
COMMENT ON COLUMN account_state.reset_at IS 'When a sandbox was last reset. Responses stored until then are not replayed.';

-- +goose Down
DROP TABLE account_state;

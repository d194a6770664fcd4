-- +goose Up
CREATE TABLE account_state (
    account_id       bigint NOT NULL,
    closed           boolean NOT NULL DEFAULT false,
    reset_at         timestamptz,
    last_sequence    bigint NOT NULL DEFAULT 0,
    last_nonce       bigint NOT NULL DEFAULT 0,
    last_event_at    timestamptz,
    last_category_id bigint NOT NULL DEFAULT 1000,
    last_pet_id      bigint NOT NULL DEFAULT 1000,
    last_order_id    bigint NOT NULL DEFAULT 1000,
    last_message_id  bigint NOT NULL DEFAULT 1000,

    CONSTRAINT account_state_pkey            PRIMARY KEY (account_id),
    CONSTRAINT account_state_account_id_fkey FOREIGN KEY (account_id) REFERENCES accounts (id)
) WITH (fillfactor = 50);

-- Every write to a store updates its row. Each page has free space for new row versions,
-- and the only index does not change (a HOT update).

COMMENT ON TABLE  account_state          IS 'One row per account, in the shard of the account. Advisory locks of the account are taken through it (see queries/sandboxes.sql).';
COMMENT ON COLUMN account_state.closed   IS 'True if the account is being deleted. No write of a sandbox and no sample data is accepted any more, and no sandbox starts as the sample.';
COMMENT ON COLUMN account_state.reset_at IS 'When a sandbox was last reset. Responses stored until then are not replayed.';
COMMENT ON COLUMN account_state.last_sequence IS 'The number of the newest event of the account; 0: there is none. A transaction that writes events updates it last.';
COMMENT ON COLUMN account_state.last_nonce    IS 'The nonce of the newest event.';
COMMENT ON COLUMN account_state.last_event_at IS 'The time of the newest event. It never decreases.';
COMMENT ON COLUMN account_state.last_category_id IS 'The id of the newest category of a sandbox or a sample. Accounts get their ids from sequences.';
COMMENT ON COLUMN account_state.last_pet_id      IS 'The id of the newest pet, as last_category_id.';
COMMENT ON COLUMN account_state.last_order_id    IS 'The id of the newest order, as last_category_id.';
COMMENT ON COLUMN account_state.last_message_id  IS 'The number in the id of the newest message, as last_category_id.';

-- +goose Down
DROP TABLE account_state;

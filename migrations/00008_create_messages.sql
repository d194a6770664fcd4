-- +goose Up
CREATE TABLE messages (
    account_id bigint NOT NULL,
    id         text   COLLATE "C" NOT NULL,
    message    text   NOT NULL,
    status     text   NOT NULL DEFAULT 'queued',
    created_at timestamptz NOT NULL DEFAULT now(),

    CONSTRAINT messages_pkey            PRIMARY KEY (account_id, id),
    CONSTRAINT messages_account_id_fkey FOREIGN KEY (account_id) REFERENCES accounts (id),
    CONSTRAINT messages_id_check        CHECK (id ~ '^msg_[0-9a-f]{32}$'),
    CONSTRAINT messages_message_check   CHECK (char_length(message) BETWEEN 1 AND 4000),
    CONSTRAINT messages_status_check    CHECK (status IN ('queued', 'delivered', 'failed'))
);

-- A prepared statement may get a plan for an average account, which can be far smaller than
-- the account of a request. The planner then estimates at least a hundredth of the table.
ALTER TABLE messages ALTER COLUMN account_id SET (n_distinct = 100);

COMMENT ON TABLE  messages            IS 'Messages from clients.';
COMMENT ON COLUMN messages.account_id IS 'The account that the row belongs to.';
COMMENT ON COLUMN messages.id         IS 'msg_ and a UUIDv7 (RFC 9562) in hexadecimal, so that ids sort by time. In a sandbox, the number of the message instead, from 1001.';
COMMENT ON COLUMN messages.status     IS 'queued; then delivered when every endpoint that subscribes has accepted the message, or failed.';

-- +goose Down
DROP TABLE messages;

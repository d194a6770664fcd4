-- +goose Up
CREATE TABLE webhook_deliveries (
    account_id      bigint NOT NULL,
    id              text   COLLATE "C" NOT NULL,
    webhook_id      text   COLLATE "C" NOT NULL,
    event_id        text   NOT NULL,
    sequence        bigint,
    type            text   NOT NULL,
    body            json,
    status          text   NOT NULL DEFAULT 'pending',
    attempts        jsonb  NOT NULL DEFAULT '[]',
    next_attempt_at timestamptz,
    created_at      timestamptz NOT NULL DEFAULT now(),

    CONSTRAINT webhook_deliveries_pkey                  PRIMARY KEY (account_id, id),
    CONSTRAINT webhook_deliveries_id_check              CHECK (id ~ '^dlv_[0-9a-f]{32}$'),
    CONSTRAINT webhook_deliveries_sequence_check        CHECK (sequence >= 1),
    CONSTRAINT webhook_deliveries_body_check            CHECK ((sequence IS NULL) = (body IS NOT NULL)),
    CONSTRAINT webhook_deliveries_status_check          CHECK (status IN ('pending', 'delivered', 'failed')),
    CONSTRAINT webhook_deliveries_attempts_check        CHECK (jsonb_typeof(attempts) = 'array'),
    CONSTRAINT webhook_deliveries_next_attempt_at_check CHECK ((status = 'pending') = (next_attempt_at IS NOT NULL))
);

-- The deliveries that are due at an endpoint. The worker reads them page by page.
CREATE INDEX webhook_deliveries_due_idx ON webhook_deliveries (account_id, webhook_id, next_attempt_at, id) WHERE status = 'pending';

-- The deliveries of an endpoint with a status, newest first. A list of all of them merges
-- the three statuses.
CREATE INDEX webhook_deliveries_status_idx ON webhook_deliveries (account_id, webhook_id, status, id);

COMMENT ON TABLE  webhook_deliveries                 IS 'Which event is sent to which endpoint, kept for 30 days.';
COMMENT ON COLUMN webhook_deliveries.account_id      IS 'The account that the row belongs to.';
COMMENT ON COLUMN webhook_deliveries.id              IS 'dlv_ and a UUIDv7 (RFC 9562) in hexadecimal, so that ids sort by time.';
COMMENT ON COLUMN webhook_deliveries.event_id        IS 'The id of the event, which is the header webhook-id of every attempt.';
COMMENT ON COLUMN webhook_deliveries.sequence        IS 'The number of the event in the feed; NULL for webhook.test, which is not in the feed.';
COMMENT ON COLUMN webhook_deliveries.body            IS 'The event of webhook.test; NULL for the others, which are read from the feed.';
COMMENT ON COLUMN webhook_deliveries.attempts        IS 'An array of {at, durationMs, httpStatus?, error?}, oldest first.';
COMMENT ON COLUMN webhook_deliveries.next_attempt_at IS 'When the delivery is due; NULL unless it is pending.';

-- +goose Down
DROP TABLE webhook_deliveries;

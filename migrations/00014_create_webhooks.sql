-- +goose Up
CREATE TABLE webhooks (
    account_id      bigint NOT NULL,
    id              text   COLLATE "C" NOT NULL,
    url             text   NOT NULL,
    types           text[] NOT NULL,
    description     text,
    status          text   NOT NULL DEFAULT 'enabled',
    disabled_reason text,
    secret          bytea  NOT NULL,
    previous_secret bytea,
    previous_until  timestamptz,
    after_sequence  bigint NOT NULL,
    until_sequence  bigint,
    lease           bigint NOT NULL DEFAULT 0,
    lease_until     timestamptz,
    failures        int    NOT NULL DEFAULT 0,
    failing_since   timestamptz,
    retry_at        timestamptz,
    slow_until      timestamptz,
    unsettled_after text   COLLATE "C" DEFAULT '',
    created_at      timestamptz NOT NULL DEFAULT now(),
    deleted_at      timestamptz,

    CONSTRAINT webhooks_pkey                  PRIMARY KEY (account_id, id),
    CONSTRAINT webhooks_id_check              CHECK (id ~ '^wh_[0-9a-f]{32}$'),
    CONSTRAINT webhooks_url_check             CHECK (char_length(url) BETWEEN 1 AND 2000),
    CONSTRAINT webhooks_types_check           CHECK (cardinality(types) BETWEEN 1 AND 100 AND (types = '{*}' OR '*' <> ALL (types))),
    CONSTRAINT webhooks_description_check     CHECK (char_length(description) <= 500),
    CONSTRAINT webhooks_status_check          CHECK (status IN ('enabled', 'disabled')),
    CONSTRAINT webhooks_disabled_reason_check CHECK ((status = 'disabled') = (disabled_reason IS NOT NULL) AND disabled_reason IN ('manual', 'failing', 'gone')),
    CONSTRAINT webhooks_previous_check        CHECK ((previous_secret IS NULL) = (previous_until IS NULL)),
    CONSTRAINT webhooks_after_sequence_check  CHECK (after_sequence >= 0),
    CONSTRAINT webhooks_failures_check        CHECK (failures >= 0),
    CONSTRAINT webhooks_deleted_at_check      CHECK (deleted_at IS NULL OR status = 'disabled')
);

-- The endpoints that fail, which a metric counts.
CREATE INDEX webhooks_failing_idx ON webhooks (account_id) WHERE status = 'enabled' AND failing_since IS NOT NULL;

COMMENT ON TABLE  webhooks                 IS 'The endpoints that receive events. An account has at most 20 that are not deleted.';
COMMENT ON COLUMN webhooks.account_id      IS 'The account that the row belongs to.';
COMMENT ON COLUMN webhooks.id              IS 'wh_ and a UUIDv7 (RFC 9562) in hexadecimal, so that ids sort by time.';
COMMENT ON COLUMN webhooks.types           IS 'The types of the events that the endpoint receives; {*} means all.';
COMMENT ON COLUMN webhooks.disabled_reason IS 'manual: by a request. failing: after 5 days without a success. gone: the endpoint returned 410. NULL: the webhook is enabled.';
COMMENT ON COLUMN webhooks.secret          IS 'The secret that signs, sealed under PETSTORE_SECRET_KEY if that was set (see internal/webhook).';
COMMENT ON COLUMN webhooks.previous_secret IS 'The secret before the last rotation. It signs too until previous_until.';
COMMENT ON COLUMN webhooks.after_sequence  IS 'The deliveries of the events up to this number are stored. Initially, and when the webhook is enabled, it is the newest number.';
COMMENT ON COLUMN webhooks.until_sequence  IS 'The newest event when the webhook was disabled. Deliveries of the events up to this number are stored; NULL: the webhook is enabled.';
COMMENT ON COLUMN webhooks.lease           IS 'The number of the last lease. A process that delivers records results only while this is its number.';
COMMENT ON COLUMN webhooks.lease_until     IS 'Until when a process may deliver, unless it renews its lease; NULL: no process delivers.';
COMMENT ON COLUMN webhooks.failures        IS 'The failed attempts in a row.';
COMMENT ON COLUMN webhooks.failing_since   IS 'The first failed attempt after the last success, or after two days without a failure; NULL: the last attempt succeeded, or there was none.';
COMMENT ON COLUMN webhooks.retry_at        IS 'Before this time, there is no attempt: the last failed attempt, and a pause after many failures; NULL: the last attempt succeeded, or there was none.';
COMMENT ON COLUMN webhooks.slow_until      IS 'Until when the webhook has its place among the slow ones: ten minutes from its last slow attempt.';
COMMENT ON COLUMN webhooks.unsettled_after IS 'The queued messages with greater ids are not adapted to the webhook yet. Empty after a change of the status or the types; NULL: all are adapted.';
COMMENT ON COLUMN webhooks.deleted_at      IS 'When the webhook was deleted. The sweep deletes its deliveries and then the row.';

-- +goose Down
DROP TABLE webhooks;

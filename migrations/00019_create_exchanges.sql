-- +goose Up
CREATE TABLE exchange_logs (
    account_id   bigint NOT NULL,
    first_number bigint NOT NULL DEFAULT 1,
    last_number  bigint NOT NULL DEFAULT 0,
    bytes        bigint NOT NULL DEFAULT 0,
    dropped      bigint NOT NULL DEFAULT 0,

    CONSTRAINT exchange_logs_pkey PRIMARY KEY (account_id)
) WITH (fillfactor = 50);

COMMENT ON TABLE  exchange_logs              IS 'One row per sandbox that has sent requests. Writers of exchanges lock it, so that their numbers have the order of the commits.';
COMMENT ON COLUMN exchange_logs.account_id   IS 'The sandbox.';
COMMENT ON COLUMN exchange_logs.first_number IS 'The number of the first exchange since a client has emptied the record. If the oldest one has a greater number, the record has lost some.';
COMMENT ON COLUMN exchange_logs.last_number  IS 'The number of the newest exchange; 0: there was none.';
COMMENT ON COLUMN exchange_logs.bytes        IS 'The size of all exchanges so far, including those that are deleted.';
COMMENT ON COLUMN exchange_logs.dropped      IS 'The number of exchanges since then that were not recorded, because a buffer was full.';

CREATE TABLE exchanges (
    account_id      bigint      NOT NULL,
    number          bigint      NOT NULL,
    start_byte        bigint      NOT NULL,
    started_at      timestamptz NOT NULL,
    microseconds    bigint      NOT NULL,
    request_id      text        NOT NULL,
    api_key_id      bigint      NOT NULL,
    method          text        NOT NULL,
    path            text        NOT NULL,
    query           text        NOT NULL,
    operation       text        NOT NULL,
    status          integer     NOT NULL,
    code            text        NOT NULL,
    idempotency_key text        NOT NULL,
    fault           text        NOT NULL,
    messages        text        NOT NULL,

    CONSTRAINT exchanges_pkey         PRIMARY KEY (account_id, number),
    CONSTRAINT exchanges_number_check CHECK (number >= 1),
    CONSTRAINT exchanges_status_check CHECK (status = 0 OR status BETWEEN 100 AND 599)
);

-- Compression would cost more CPU time than all the rest of an INSERT.
ALTER TABLE exchanges ALTER COLUMN messages SET STORAGE EXTERNAL;

COMMENT ON TABLE  exchanges                 IS 'Requests to sandboxes with their responses, without secrets. Each sandbox has its newest 5,000, of at most 24 hours and 16 MiB.';
COMMENT ON COLUMN exchanges.account_id      IS 'The sandbox.';
COMMENT ON COLUMN exchanges.number          IS '1, 2, 3, … per sandbox, in the order in which the exchanges were recorded.';
COMMENT ON COLUMN exchanges.start_byte        IS 'exchange_logs.bytes before this exchange.';
COMMENT ON COLUMN exchanges.request_id      IS 'The header X-Request-Id, which a client may choose.';
COMMENT ON COLUMN exchanges.operation       IS 'The operationId; empty: the path does not exist.';
COMMENT ON COLUMN exchanges.status          IS 'The status of the response; 0: the client got none.';
COMMENT ON COLUMN exchanges.code            IS 'The code of the error; empty: there was none.';
COMMENT ON COLUMN exchanges.idempotency_key IS 'The header Idempotency-Key; empty: there was none.';
COMMENT ON COLUMN exchanges.fault           IS 'The index of the fault rule that was injected, a slash and its effect; empty: there was none.';
COMMENT ON COLUMN exchanges.messages        IS 'The headers and bodies of the request and the response, as JSON.';

-- +goose StatementBegin
CREATE FUNCTION append_exchanges(
    accounts bigint[], additions bigint[], added_bytes bigint[], drops bigint[],
    of_accounts bigint[], positions bigint[], start_bytes bigint[],
    started timestamptz[], durations bigint[], request_ids text[], api_key_ids bigint[], methods text[], paths text[], queries text[],
    operations text[], statuses integer[], codes text[], idempotency_keys text[], faults text[], documents text[],
    most bigint, most_bytes bigint
) RETURNS SETOF bigint
    LANGUAGE plpgsql
    SET plan_cache_mode = force_generic_plan
AS $$
-- Appends exchanges to the logs of several sandboxes, and deletes the oldest beyond the limits.
-- positions and start_bytes count within the new exchanges of a sandbox. Returns the sandboxes
-- whose log another transaction has locked. It ignores those that are gone.
DECLARE
    locked bigint[];
BEGIN
    INSERT INTO exchange_logs (account_id)
    SELECT account_state.account_id
    FROM account_state
    WHERE account_state.account_id = ANY (accounts)
      AND NOT EXISTS (SELECT FROM exchange_logs WHERE exchange_logs.account_id = account_state.account_id)
    ON CONFLICT DO NOTHING;

    locked := ARRAY(SELECT account_id FROM exchange_logs WHERE account_id = ANY (accounts) FOR NO KEY UPDATE SKIP LOCKED);

    INSERT INTO exchanges (account_id, number, start_byte, started_at, microseconds, request_id, api_key_id, method, path, query,
                           operation, status, code, idempotency_key, fault, messages)
    SELECT exchange_logs.account_id, exchange_logs.last_number + new.position, exchange_logs.bytes + new.start_byte,
           new.started_at, new.microseconds, new.request_id, new.api_key_id, new.method, new.path, new.query,
           new.operation, new.status, new.code, new.idempotency_key, new.fault, new.messages
    FROM (
        SELECT unnest(of_accounts) AS account_id, unnest(positions) AS position, unnest(start_bytes) AS start_byte,
               unnest(started) AS started_at, unnest(durations) AS microseconds, unnest(request_ids) AS request_id,
               unnest(api_key_ids) AS api_key_id, unnest(methods) AS method, unnest(paths) AS path, unnest(queries) AS query,
               unnest(operations) AS operation, unnest(statuses) AS status, unnest(codes) AS code,
               unnest(idempotency_keys) AS idempotency_key, unnest(faults) AS fault, unnest(documents) AS messages
    ) AS new
    JOIN exchange_logs ON exchange_logs.account_id = new.account_id
    WHERE new.account_id = ANY (locked);

    UPDATE exchange_logs
    SET last_number = exchange_logs.last_number + new.addition,
        bytes       = exchange_logs.bytes + new.bytes,
        dropped     = exchange_logs.dropped + new.lost
    FROM (SELECT unnest(accounts) AS account_id, unnest(additions) AS addition, unnest(added_bytes) AS bytes, unnest(drops) AS lost) AS new
    WHERE exchange_logs.account_id = new.account_id
      AND new.account_id = ANY (locked);

    DELETE FROM exchanges
    USING (
        SELECT logs.account_id, greatest(logs.last_number - most, (
            SELECT kept.number - 1
            FROM exchanges AS kept
            WHERE kept.account_id = logs.account_id
              AND kept.start_byte >= logs.bytes - most_bytes
            ORDER BY kept.number
            LIMIT 1
        )) AS last_number
        FROM exchange_logs AS logs
        WHERE logs.account_id = ANY (locked)
    ) AS expired
    WHERE exchanges.account_id = expired.account_id
      AND exchanges.number <= expired.last_number;

    RETURN QUERY
    SELECT account_id FROM exchange_logs WHERE account_id = ANY (accounts) AND account_id <> ALL (locked);
END
$$;
-- +goose StatementEnd

-- +goose Down
DROP FUNCTION append_exchanges(
    bigint[], bigint[], bigint[], bigint[],
    bigint[], bigint[], bigint[],
    timestamptz[], bigint[], text[], bigint[], text[], text[], text[],
    text[], integer[], text[], text[], text[], text[],
    bigint, bigint
);
DROP TABLE exchanges;
DROP TABLE exchange_logs;

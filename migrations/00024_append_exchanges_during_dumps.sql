-- +goose Up
-- append_exchanges skips the exchanges that earlier calls have deleted. While an old snapshot, such as one of a
-- dump, holds back VACUUM, each call read all of them: after 200,000, it took 300 ms instead of 3.
SET LOCAL lock_timeout = '2s';

-- +goose StatementBegin
CREATE OR REPLACE FUNCTION append_exchanges(
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
    locked   bigint[];
    too_long bigint[];
    newest   bigint;
    end_byte bigint;
BEGIN
    -- If PostgreSQL crashes, it may lose the latest exchanges. A sync would cost half as much CPU time as all the rest.
    PERFORM set_config('synchronous_commit', 'off', true);

    IF cardinality(accounts) = 1 THEN
        SELECT last_number, bytes INTO newest, end_byte FROM exchange_logs WHERE account_id = accounts[1] FOR NO KEY UPDATE SKIP LOCKED;
        IF NOT FOUND THEN
            INSERT INTO exchange_logs (account_id)
            SELECT account_state.account_id
            FROM account_state
            WHERE account_state.account_id = accounts[1]
              AND NOT EXISTS (SELECT FROM exchange_logs WHERE exchange_logs.account_id = accounts[1])
            ON CONFLICT DO NOTHING;

            SELECT last_number, bytes INTO newest, end_byte FROM exchange_logs WHERE account_id = accounts[1] FOR NO KEY UPDATE SKIP LOCKED;
            IF NOT FOUND THEN
                RETURN QUERY
                SELECT account_id FROM exchange_logs WHERE account_id = accounts[1];
                RETURN;
            END IF;
        END IF;

        INSERT INTO exchanges (account_id, number, start_byte, started_at, microseconds, request_id, api_key_id, method, path, query,
                               operation, status, code, idempotency_key, fault, messages)
        SELECT exchange_logs.account_id, exchange_logs.last_number + new.position, exchange_logs.bytes + new.start_byte,
               new.started_at, new.microseconds, new.request_id, new.api_key_id, new.method, new.path, new.query,
               new.operation, new.status, new.code, new.idempotency_key, new.fault, new.messages
        FROM (
            SELECT unnest(positions) AS position, unnest(start_bytes) AS start_byte,
                   unnest(started) AS started_at, unnest(durations) AS microseconds, unnest(request_ids) AS request_id,
                   unnest(api_key_ids) AS api_key_id, unnest(methods) AS method, unnest(paths) AS path, unnest(queries) AS query,
                   unnest(operations) AS operation, unnest(statuses) AS status, unnest(codes) AS code,
                   unnest(idempotency_keys) AS idempotency_key, unnest(faults) AS fault, unnest(documents) AS messages
        ) AS new
        CROSS JOIN exchange_logs
        WHERE exchange_logs.account_id = accounts[1];

        UPDATE exchange_logs
        SET last_number = last_number + additions[1], bytes = bytes + added_bytes[1], dropped = dropped + drops[1]
        WHERE account_id = accounts[1]
        RETURNING last_number, bytes INTO newest, end_byte;

        IF newest > most OR end_byte > most_bytes THEN
            DELETE FROM exchanges
            WHERE account_id = accounts[1]
              AND number > newest - additions[1] - most -- an earlier call has deleted the others
              AND number <= greatest(newest - most, (
                  SELECT kept.number - 1
                  FROM exchanges AS kept
                  WHERE kept.account_id = accounts[1]
                    AND kept.number > newest - additions[1] - most
                    AND kept.start_byte >= end_byte - most_bytes
                  ORDER BY kept.number
                  LIMIT 1
              ));
        END IF;
        RETURN;
    END IF;

    locked := ARRAY(
        SELECT account_id FROM exchange_logs WHERE account_id = ANY (accounts) FOR NO KEY UPDATE SKIP LOCKED
    );
    IF cardinality(locked) < cardinality(accounts) THEN
        INSERT INTO exchange_logs (account_id)
        SELECT account_state.account_id
        FROM account_state
        WHERE account_state.account_id = ANY (accounts)
          AND NOT EXISTS (SELECT FROM exchange_logs WHERE exchange_logs.account_id = account_state.account_id)
        ON CONFLICT DO NOTHING;
        locked := ARRAY(
            SELECT account_id FROM exchange_logs WHERE account_id = ANY (accounts) FOR NO KEY UPDATE SKIP LOCKED
        );
    END IF;

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

    too_long := ARRAY(
        SELECT account_id FROM exchange_logs WHERE account_id = ANY (locked) AND (last_number > most OR bytes > most_bytes)
    );
    IF cardinality(too_long) > 0 THEN
        DELETE FROM exchanges
        USING (
            SELECT logs.account_id, logs.last_number - cardinality(of_accounts) - most AS last_deleted, greatest(logs.last_number - most, (
                SELECT kept.number - 1
                FROM exchanges AS kept
                WHERE kept.account_id = logs.account_id
                  AND kept.number > logs.last_number - cardinality(of_accounts) - most
                  AND kept.start_byte >= logs.bytes - most_bytes
                ORDER BY kept.number
                LIMIT 1
            )) AS last_number
            FROM exchange_logs AS logs
            WHERE logs.account_id = ANY (too_long)
            GROUP BY logs.account_id -- else the planner joins first, and runs the inner query for each exchange
        ) AS expired
        WHERE exchanges.account_id = expired.account_id
          AND exchanges.number > expired.last_deleted
          AND exchanges.number <= expired.last_number;
    END IF;

    IF cardinality(locked) < cardinality(accounts) THEN
        RETURN QUERY
        SELECT account_id FROM exchange_logs WHERE account_id = ANY (accounts) AND account_id <> ALL (locked);
    END IF;
END
$$;
-- +goose StatementEnd

-- +goose Down
-- +goose StatementBegin
CREATE OR REPLACE FUNCTION append_exchanges(
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
    locked   bigint[];
    too_long bigint[];
    newest   bigint;
    end_byte bigint;
BEGIN
    -- If PostgreSQL crashes, it may lose the latest exchanges. A sync would cost half as much CPU time as all the rest.
    PERFORM set_config('synchronous_commit', 'off', true);

    IF cardinality(accounts) = 1 THEN
        SELECT last_number, bytes INTO newest, end_byte FROM exchange_logs WHERE account_id = accounts[1] FOR NO KEY UPDATE SKIP LOCKED;
        IF NOT FOUND THEN
            INSERT INTO exchange_logs (account_id)
            SELECT account_state.account_id
            FROM account_state
            WHERE account_state.account_id = accounts[1]
              AND NOT EXISTS (SELECT FROM exchange_logs WHERE exchange_logs.account_id = accounts[1])
            ON CONFLICT DO NOTHING;

            SELECT last_number, bytes INTO newest, end_byte FROM exchange_logs WHERE account_id = accounts[1] FOR NO KEY UPDATE SKIP LOCKED;
            IF NOT FOUND THEN
                RETURN QUERY
                SELECT account_id FROM exchange_logs WHERE account_id = accounts[1];
                RETURN;
            END IF;
        END IF;

        INSERT INTO exchanges (account_id, number, start_byte, started_at, microseconds, request_id, api_key_id, method, path, query,
                               operation, status, code, idempotency_key, fault, messages)
        SELECT exchange_logs.account_id, exchange_logs.last_number + new.position, exchange_logs.bytes + new.start_byte,
               new.started_at, new.microseconds, new.request_id, new.api_key_id, new.method, new.path, new.query,
               new.operation, new.status, new.code, new.idempotency_key, new.fault, new.messages
        FROM (
            SELECT unnest(positions) AS position, unnest(start_bytes) AS start_byte,
                   unnest(started) AS started_at, unnest(durations) AS microseconds, unnest(request_ids) AS request_id,
                   unnest(api_key_ids) AS api_key_id, unnest(methods) AS method, unnest(paths) AS path, unnest(queries) AS query,
                   unnest(operations) AS operation, unnest(statuses) AS status, unnest(codes) AS code,
                   unnest(idempotency_keys) AS idempotency_key, unnest(faults) AS fault, unnest(documents) AS messages
        ) AS new
        CROSS JOIN exchange_logs
        WHERE exchange_logs.account_id = accounts[1];

        UPDATE exchange_logs
        SET last_number = last_number + additions[1], bytes = bytes + added_bytes[1], dropped = dropped + drops[1]
        WHERE account_id = accounts[1]
        RETURNING last_number, bytes INTO newest, end_byte;

        IF newest > most OR end_byte > most_bytes THEN
            DELETE FROM exchanges
            WHERE account_id = accounts[1]
              AND number <= greatest(newest - most, (
                  SELECT kept.number - 1
                  FROM exchanges AS kept
                  WHERE kept.account_id = accounts[1]
                    AND kept.start_byte >= end_byte - most_bytes
                  ORDER BY kept.number
                  LIMIT 1
              ));
        END IF;
        RETURN;
    END IF;

    locked := ARRAY(
        SELECT account_id FROM exchange_logs WHERE account_id = ANY (accounts) FOR NO KEY UPDATE SKIP LOCKED
    );
    IF cardinality(locked) < cardinality(accounts) THEN
        INSERT INTO exchange_logs (account_id)
        SELECT account_state.account_id
        FROM account_state
        WHERE account_state.account_id = ANY (accounts)
          AND NOT EXISTS (SELECT FROM exchange_logs WHERE exchange_logs.account_id = account_state.account_id)
        ON CONFLICT DO NOTHING;
        locked := ARRAY(
            SELECT account_id FROM exchange_logs WHERE account_id = ANY (accounts) FOR NO KEY UPDATE SKIP LOCKED
        );
    END IF;

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

    too_long := ARRAY(
        SELECT account_id FROM exchange_logs WHERE account_id = ANY (locked) AND (last_number > most OR bytes > most_bytes)
    );
    IF cardinality(too_long) > 0 THEN
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
            WHERE logs.account_id = ANY (too_long)
            GROUP BY logs.account_id -- else the planner joins first, and runs the inner query for each exchange
        ) AS expired
        WHERE exchanges.account_id = expired.account_id
          AND exchanges.number <= expired.last_number;
    END IF;

    IF cardinality(locked) < cardinality(accounts) THEN
        RETURN QUERY
        SELECT account_id FROM exchange_logs WHERE account_id = ANY (accounts) AND account_id <> ALL (locked);
    END IF;
END
$$;
-- +goose StatementEnd

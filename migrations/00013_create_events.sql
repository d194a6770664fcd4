-- +goose Up
CREATE TABLE events (
    account_id bigint NOT NULL,
    sequence   bigint NOT NULL,
    created_at timestamptz NOT NULL,
    nonce      bigint NOT NULL,
    type       text   NOT NULL,
    subject    text   NOT NULL,
    data       json   NOT NULL,

    CONSTRAINT events_pkey           PRIMARY KEY (account_id, sequence, created_at),
    CONSTRAINT events_sequence_check CHECK (sequence >= 1),
    CONSTRAINT events_nonce_check    CHECK (nonce BETWEEN 0 AND 4294967295)
) PARTITION BY RANGE (created_at);

COMMENT ON TABLE  events            IS 'What changed in each store, kept for 30 days. The account exists: the transaction that inserts has locked its row in account_state, so there is no foreign key.';
COMMENT ON COLUMN events.account_id IS 'The account that the row belongs to.';
COMMENT ON COLUMN events.sequence   IS '1, 2, 3, … per account, without gaps, in the order of the commits. That it is unique rests on the lock of account_state, because a unique index would need the partition key.';
COMMENT ON COLUMN events.nonce      IS 'A random part of the id, which tells apart two events that have the same number after a failover that lost the first.';
COMMENT ON COLUMN events.type       IS 'One of those that package event lists. A CHECK of them would cost each INSERT 30 µs, because PostgreSQL parses the stored list each time.';
COMMENT ON COLUMN events.subject    IS 'The path of the resource that the request changed.';
COMMENT ON COLUMN events.data       IS 'The resources whose representation the change altered, as they are afterwards, or as they were before they were deleted.';

-- One function numbers and inserts, because Citus rejects both in one statement. Before it
-- runs, the server has received all its parameters. So a client that stops while it sends
-- them does not hold the row of its account.

-- +goose StatementBegin
CREATE FUNCTION append_events(
    account bigint, new_nonce bigint, types text[], subjects text[], documents text[],
    new_category bigint, new_pet bigint, new_order bigint, new_message bigint
) RETURNS void
    LANGUAGE plpgsql
AS $$
-- Takes the next numbers of the feed of an account, and inserts events with them. It also
-- stores the newest ids of a sandbox; 0: nothing new. Writers of the account wait here for each
-- other until the transaction ends.
BEGIN
    UPDATE account_state
    SET last_sequence = last_sequence + cardinality(types),
        last_nonce = CASE WHEN cardinality(types) > 0 THEN new_nonce ELSE last_nonce END,
        last_event_at = greatest(last_event_at, statement_timestamp()),
        last_category_id = greatest(last_category_id, new_category),
        last_pet_id = greatest(last_pet_id, new_pet),
        last_order_id = greatest(last_order_id, new_order),
        last_message_id = greatest(last_message_id, new_message)
    WHERE account_id = account;

    INSERT INTO events (account_id, sequence, created_at, nonce, type, subject, data)
    SELECT account_state.account_id, account_state.last_sequence - cardinality(types) + made.position, account_state.last_event_at,
           account_state.last_nonce, made.type, made.subject, made.data
    FROM (
        -- The subquery hides the number of rows from the planner, which keeps its plan then.
        SELECT generate_series(1, (SELECT cardinality(types))) AS position, unnest(types) AS type, unnest(subjects) AS subject,
               unnest(documents)::json AS data
    ) AS made
    LEFT JOIN account_state ON account_state.account_id = account;
END
$$;
-- +goose StatementEnd

-- Each partition has a week, from Monday 00:00 UTC. The role of serve may not create
-- tables, so maintain_events runs with the rights of the role that migrates.

-- +goose StatementBegin
CREATE FUNCTION event_partitions() RETURNS TABLE (partition_name text, bounds tstzrange)
    LANGUAGE sql STABLE
    SET timezone = 'UTC'
    SET datestyle = 'ISO'
AS $$
-- Returns the partitions of events and the times of their rows. The default partition, which
-- an operator may have added, has the bounds NULL. PostgreSQL reads the bounds in the target
-- list, so it never reads bounds of other tables, which may be no times.
SELECT child.relname::text,
    CASE WHEN pg_get_expr(child.relpartbound, child.oid) <> 'DEFAULT' THEN tstzrange(
        substring(pg_get_expr(child.relpartbound, child.oid) FROM 'FROM \(''([^'']+)''\)')::timestamptz,
        substring(pg_get_expr(child.relpartbound, child.oid) FROM 'TO \(''([^'']+)''\)')::timestamptz)
    END
FROM pg_inherits
JOIN pg_class AS child ON child.oid = pg_inherits.inhrelid
WHERE pg_inherits.inhparent = to_regclass('events')
  AND NOT pg_inherits.inhdetachpending
$$;
-- +goose StatementEnd

-- +goose StatementBegin
CREATE FUNCTION maintain_events() RETURNS integer
    LANGUAGE plpgsql SECURITY DEFINER
    SET lock_timeout = '200ms'
    SET timezone = 'UTC'
    SET datestyle = 'ISO'
AS $$
-- Creates the partitions that are missing for this week and the next four, and drops those
-- whose last event is older than 30 days. Returns how many it has created and dropped. Another
-- process that does the same makes it return 0. Partitions of an operator stay as they are,
-- and this function fills the times between them.
DECLARE
    this_week date := date_trunc('week', now())::date;
    week      date;
    gap       tstzrange;
    part      text;
    changed   integer := 0;
BEGIN
    IF NOT pg_try_advisory_xact_lock(hashtextextended('maintain_events', 0)) THEN
        RETURN 0;
    END IF;
    -- Citus then gives the workers the limit too, if the caller has begun a transaction.
    -- Otherwise the locks on the coordinator could stay as long as a worker waits.
    SET LOCAL citus.propagate_set_commands = 'local';
    SET LOCAL lock_timeout = '200ms';
    FOR week, gap IN
        SELECT weeks.week, unnest(tstzmultirange(tstzrange(weeks.week, weeks.week + 7)) - existing.bounds)
        FROM (SELECT this_week + 7 * n AS week FROM generate_series(0, 4) AS n) AS weeks,
             (SELECT coalesce(range_agg(event_partitions.bounds), '{}') AS bounds FROM event_partitions()) AS existing
        ORDER BY 1
    LOOP
        part := 'events_' || to_char(lower(gap), 'YYYYMMDD');
        WHILE to_regclass(part) IS NOT NULL LOOP -- a table that was detached, or begins on the same day
            part := part || '_';
        END LOOP;
        BEGIN
            -- Attaching a table locks less of its parent than creating a partition.
            EXECUTE format('CREATE TABLE %I (LIKE events INCLUDING ALL)', part);
            EXECUTE format('ALTER TABLE events ATTACH PARTITION %I FOR VALUES FROM (%L) TO (%L)', part, lower(gap), upper(gap));
            changed := changed + 1;
        EXCEPTION
            WHEN check_violation THEN -- The default partition has events of the week.
                RAISE WARNING 'events has no partition for %: %', gap, SQLERRM;
            WHEN lock_not_available THEN
                RAISE WARNING 'events has no partition for %: %', gap, SQLERRM;
                EXIT; -- A transaction uses the default partition, or changes events. A later call goes on.
        END;
    END LOOP;
    FOR part IN
        SELECT partition_name
        FROM event_partitions()
        WHERE partition_name ~ '^events_[0-9]{8}_*$' -- leaves an operator's partitions alone
          AND upper(bounds) <= current_date - 30
        ORDER BY partition_name
    LOOP
        BEGIN
            EXECUTE format('DROP TABLE %I', part);
            changed := changed + 1;
        EXCEPTION
            WHEN lock_not_available THEN
                EXIT; -- A transaction, such as a dump, uses the table. A later call drops it.
            WHEN insufficient_privilege OR dependent_objects_still_exist THEN -- an operator has created it, or a view
                RAISE WARNING 'the old partition % of events stays: %', part, SQLERRM;
        END;
    END LOOP;
    RETURN changed;
END
$$;
-- +goose StatementEnd

-- The functions must not find a table of another schema.
-- +goose StatementBegin
DO $$
BEGIN
    EXECUTE format('ALTER FUNCTION event_partitions() SET search_path = %I, pg_temp', current_schema());
    EXECUTE format('ALTER FUNCTION maintain_events() SET search_path = %I, pg_temp', current_schema());
END
$$;
-- +goose StatementEnd

REVOKE EXECUTE ON FUNCTION maintain_events() FROM PUBLIC;

SELECT maintain_events();

-- +goose Down
DROP FUNCTION maintain_events();
DROP FUNCTION event_partitions();
DROP FUNCTION append_events(bigint, bigint, text[], text[], text[], bigint, bigint, bigint, bigint);
DROP TABLE events;

-- +goose Up
-- One function locks the rows of account_state and writes, as append_events does for one
-- account. Before it runs, the server has received all its parameters. So a client that stops
-- while it sends them does not hold the feeds of many accounts.
--
-- The arrays have another length each time, so PostgreSQL would plan each statement again.

-- +goose StatementBegin
CREATE FUNCTION write_stores(
    accounts bigint[], new_events bigint[], new_orders bigint[],
    stock_accounts bigint[], stock_pets bigint[], quantities bigint[], helds bigint[],
    pet_accounts bigint[], pet_ids bigint[], category_ids bigint[], names text[], name_keys text[], statuses text[],
    order_accounts bigint[], order_ids bigint[], order_pets bigint[], order_quantities bigint[], ship_dates timestamptz[], no_ship_date timestamptz,
    key_accounts bigint[], key_api_keys bigint[], keys text[], fingerprints bytea[], key_statuses integer[], locations text[], bodies bytea[],
    event_accounts bigint[], later_events bigint[], new_nonce bigint, types text[], subjects text[], documents text[]
) RETURNS SETOF bigint
    LANGUAGE plpgsql
    SET plan_cache_mode = force_generic_plan
AS $$
-- Writes what a group has decided for several accounts, and numbers its events. It skips the
-- accounts whose feed another transaction holds or that are gone, and returns the others.
-- new_events has the number of events of each account, and new_orders its newest order if it is
-- a sandbox; 0: nothing new. later_events has the number of events of the same account that come
-- after each event.
DECLARE
    written bigint[] := ARRAY(SELECT account_id FROM account_state WHERE account_id = ANY (accounts) FOR NO KEY UPDATE SKIP LOCKED);
    complete boolean := cardinality(written) = cardinality(accounts);
BEGIN
    UPDATE inventory
    SET quantity = new.quantity,
        held     = new.held
    FROM (SELECT unnest(stock_accounts) AS account_id, unnest(stock_pets) AS pet_id, unnest(quantities) AS quantity, unnest(helds) AS held) AS new
    WHERE inventory.account_id = new.account_id
      AND inventory.pet_id = new.pet_id
      AND (complete OR new.account_id = ANY (written));

    IF cardinality(pet_ids) > 0 THEN
        UPDATE pets
        SET category_id = new.category_id,
            name        = new.name,
            name_key    = new.name_key,
            status      = new.status
        FROM (
            SELECT unnest(pet_accounts) AS account_id, unnest(pet_ids) AS id, unnest(category_ids) AS category_id,
                   unnest(names) AS name, unnest(name_keys) AS name_key, unnest(statuses) AS status
        ) AS new
        WHERE pets.account_id = new.account_id
          AND pets.id = new.id
          AND (complete OR new.account_id = ANY (written));
    END IF;

    INSERT INTO orders (account_id, id, pet_id, quantity, ship_date)
    SELECT placed.account_id, placed.id, placed.pet_id, placed.quantity, nullif(placed.ship_date, no_ship_date)
    FROM (
        SELECT unnest(order_accounts) AS account_id, unnest(order_ids) AS id, unnest(order_pets) AS pet_id,
               unnest(order_quantities) AS quantity, unnest(ship_dates) AS ship_date
    ) AS placed
    WHERE complete OR placed.account_id = ANY (written);

    IF cardinality(keys) > 0 THEN
        INSERT INTO idempotency_keys (account_id, api_key_id, key, fingerprint, status, location, body, created_at)
        SELECT done.account_id, done.api_key_id, done.key, done.fingerprint, done.status, done.location, done.body, statement_timestamp()
        FROM (
            SELECT unnest(key_accounts) AS account_id, unnest(key_api_keys) AS api_key_id, unnest(keys) AS key, unnest(fingerprints) AS fingerprint,
                   unnest(key_statuses) AS status, unnest(locations) AS location, unnest(bodies) AS body
        ) AS done
        WHERE complete OR done.account_id = ANY (written);
    END IF;

    UPDATE account_state
    SET last_sequence = last_sequence + new.events,
        last_nonce    = CASE WHEN new.events > 0 THEN new_nonce ELSE last_nonce END,
        last_event_at = greatest(last_event_at, statement_timestamp()),
        last_order_id = greatest(last_order_id, new.order_id)
    FROM (SELECT unnest(accounts) AS account_id, unnest(new_events) AS events, unnest(new_orders) AS order_id) AS new
    WHERE account_state.account_id = new.account_id
      AND (complete OR new.account_id = ANY (written));

    INSERT INTO events (account_id, sequence, created_at, nonce, type, subject, data)
    SELECT account_state.account_id, account_state.last_sequence - made.later, account_state.last_event_at, account_state.last_nonce,
           made.type, made.subject, made.data
    FROM (
        SELECT unnest(event_accounts) AS account_id, unnest(later_events) AS later, unnest(types) AS type,
               unnest(subjects) AS subject, unnest(documents)::json AS data
    ) AS made
    JOIN account_state ON account_state.account_id = made.account_id
    WHERE complete OR made.account_id = ANY (written);

    RETURN QUERY SELECT unnest(written);
END
$$;
-- +goose StatementEnd

-- +goose Down
DROP FUNCTION write_stores(
    bigint[], bigint[], bigint[],
    bigint[], bigint[], bigint[], bigint[],
    bigint[], bigint[], bigint[], text[], text[], text[],
    bigint[], bigint[], bigint[], bigint[], timestamptz[], timestamptz,
    bigint[], bigint[], text[], bytea[], integer[], text[], bytea[],
    bigint[], bigint[], bigint, text[], text[], text[]
);

-- The statements of internal/groupcommit. The first batch of a group locks and reads,
-- the second one writes. EventsAppend and StoresWrite also lock and read as they write; the latter
-- never runs on a sharded cluster.
--
-- The row in inventory is the lock of a pet: every transaction that changes the pet, its
-- stock or its orders locks that row first. So the rows that a later statement reads are
-- current and stay so until the transaction ends.
--
-- ANY (ARRAY(SELECT unnest($1))), unnest((SELECT $1)) and generate_series(1, (SELECT $1))
-- hide the number of rows from the planner. With ANY ($1) and unnest($1), it would plan a
-- statement for few rows again each time, instead of keeping a generic plan.

-- An insert of several rows takes account_id from account_state. So a sharded cluster sends
-- it to the shard of the account, instead of reading the rows on the coordinator and copying
-- them there. Every account has a row in account_state until the sweep has deleted the rest
-- of it. Without one, account_id would be NULL, and the insert fails.

-- name: StatementsLimit :batchexec
-- Limits each later statement of the transaction, unless the session has a lower limit. PostgreSQL
-- writes its value with a unit of an interval, such as 5s or 500ms; 0 is no limit.
SELECT set_config('statement_timeout', least(
	@milliseconds::bigint,
	nullif(extract(epoch FROM current_setting('statement_timeout')::interval) * 1000, 0)::bigint
)::text, true);

-- name: SandboxEnter :batchexec
-- Waits until no other request writes to the store of a sandbox, and locks it (see
-- queries/sandboxes.sql).
SELECT pg_advisory_xact_lock(hashtextextended('store', @account_id::bigint))
FROM account_state
WHERE account_id = @account_id;

-- name: SandboxTryEnter :batchmany
-- Locks the store of a sandbox as [SandboxEnter]. Returns false if another request has
-- locked it or waits for it, so that the request that waits has its turn.
SELECT pg_try_advisory_xact_lock(hashtextextended('store', @account_id::bigint))
FROM account_state
WHERE account_id = @account_id;

-- name: SandboxRead :batchmany
-- Tells whether a sandbox is being deleted, and returns its newest ids. No row means that it is
-- gone. It runs after the lock.
SELECT closed, last_category_id, last_pet_id, last_order_id, last_message_id
FROM account_state
WHERE account_id = @account_id;

-- name: SandboxCountRows :batchmany
-- Counts the rows of a kind of a sandbox up to a bound. The newest id is at least the number of
-- rows. So while it is small, nothing is counted, and the number is 0. Only the branch of the
-- kind runs.
SELECT @kind::text AS kind, (CASE
    WHEN (CASE @kind
        WHEN 'pets' THEN last_pet_id
        WHEN 'orders' THEN last_order_id
        WHEN 'messages' THEN last_message_id
        WHEN 'categories' THEN last_category_id
    END) <= @small THEN 0
    WHEN @kind = 'pets' THEN (SELECT count(*) FROM (SELECT FROM pets WHERE pets.account_id = @account_id LIMIT @bound) AS counted)
    WHEN @kind = 'orders' THEN (SELECT count(*) FROM (SELECT FROM orders WHERE orders.account_id = @account_id LIMIT @bound) AS counted)
    WHEN @kind = 'messages' THEN (SELECT count(*) FROM (SELECT FROM messages WHERE messages.account_id = @account_id LIMIT @bound) AS counted)
    WHEN @kind = 'categories' THEN (SELECT count(*) FROM (SELECT FROM categories WHERE categories.account_id = @account_id LIMIT @bound) AS counted)
END)::bigint AS rows
FROM account_state
WHERE account_state.account_id = @account_id;

-- name: IdempotencyKeysLock :batchmany
-- Locks keys until the transaction ends, and returns those that no other request holds.
-- The locks are taken through a row of the account, so that on a sharded cluster they
-- are taken where the account is. The client chooses the key, and the prefix keeps it apart
-- from other advisory locks, unless a client computes a collision. Then these locks, which are only
-- tried, fail for the time of a transaction.
SELECT wanted.api_key_id::bigint AS api_key_id, wanted.key::text AS key
FROM account_state
CROSS JOIN (SELECT unnest(@api_key_ids::bigint[]) AS api_key_id, unnest(@keys::text[]) AS key) AS wanted
WHERE account_state.account_id = @account_id
  AND pg_try_advisory_xact_lock(hashtextextended('idempotency ' || wanted.key, wanted.api_key_id));

-- name: IdempotencyKeysGet :batchmany
-- Returns the stored responses of keys, also those older than 24 hours or than the last
-- reset, which nobody may get any more. It runs after the lock in a statement of its
-- own, so it sees what the previous holder of a key has committed. LIMIT makes the
-- planner look up each key, whatever it expects.
SELECT stored.api_key_id, stored.key, stored.fingerprint, stored.status, stored.location, stored.body, stored.expired
FROM (SELECT unnest((SELECT @api_key_ids::bigint[])) AS api_key_id, unnest((SELECT @keys::text[])) AS key) AS wanted
CROSS JOIN LATERAL (
    SELECT idempotency_keys.api_key_id, idempotency_keys.key, idempotency_keys.fingerprint, idempotency_keys.status,
           idempotency_keys.location, idempotency_keys.body,
           (idempotency_keys.created_at <= now() - interval '24 hours'
               OR EXISTS (SELECT FROM account_state WHERE account_state.account_id = @account_id AND account_state.reset_at >= idempotency_keys.created_at))::boolean AS expired
    FROM idempotency_keys
    WHERE idempotency_keys.account_id = @account_id
      AND idempotency_keys.api_key_id = wanted.api_key_id
      AND idempotency_keys.key = wanted.key
    LIMIT 1
) AS stored;

-- name: CategoriesWait :batchexec
-- Waits until no other transaction changes the categories, and keeps them from being
-- deleted.
SELECT id
FROM categories
WHERE account_id = @account_id
  AND id = ANY (ARRAY(SELECT unnest(@ids::bigint[])))
ORDER BY id
FOR KEY SHARE;

-- name: CategoryLock :batchmany
-- Waits until no other transaction uses the category, locks it and returns it.
SELECT account_id, id, name, name_key, description
FROM categories
WHERE account_id = @account_id
  AND id = @id
FOR UPDATE;

-- name: CategoriesLock :batchmany
-- Returns categories and keeps them from being deleted. Skips those that another
-- transaction changes.
SELECT account_id, id, name, name_key, description
FROM categories
WHERE account_id = @account_id
  AND id = ANY (ARRAY(SELECT unnest(@ids::bigint[])))
FOR KEY SHARE SKIP LOCKED;

-- name: CategoriesWithPets :batchmany
-- Returns the categories, of the given ones, that have pets. LIMIT makes the planner look up each.
SELECT wanted.id::bigint AS id
FROM (SELECT unnest((SELECT @ids::bigint[])) AS id) AS wanted
CROSS JOIN LATERAL (SELECT FROM pets WHERE pets.account_id = @account_id AND pets.category_id = wanted.id LIMIT 1) AS used;

-- name: PetsWait :batchexec
-- Waits until no other transaction has locked the pets, and locks them in the order of
-- their ids.
SELECT pet_id
FROM inventory
WHERE account_id = @account_id
  AND pet_id = ANY (ARRAY(SELECT unnest(@ids::bigint[])))
ORDER BY pet_id
FOR NO KEY UPDATE;

-- name: PetsLock :batchmany
-- Locks pets and returns them with their stock. Skips those that another transaction has
-- locked. Both rows are locked, so both are current.
SELECT pets.account_id, pets.id, pets.category_id, pets.name, pets.name_key, pets.status, inventory.quantity, inventory.held
FROM inventory
JOIN pets ON pets.account_id = @account_id AND pets.id = inventory.pet_id
WHERE inventory.account_id = @account_id
  AND inventory.pet_id = ANY (ARRAY(SELECT unnest(@ids::bigint[])))
FOR NO KEY UPDATE SKIP LOCKED;

-- name: PetsWithOrders :batchmany
-- Returns the pets, of the given ones, that have orders. LIMIT as in [CategoriesWithPets].
SELECT wanted.pet_id::bigint AS pet_id
FROM (SELECT unnest((SELECT @pet_ids::bigint[])) AS pet_id) AS wanted
CROSS JOIN LATERAL (SELECT FROM orders WHERE orders.account_id = @account_id AND orders.pet_id = wanted.pet_id LIMIT 1) AS placed;

-- name: OrdersRead :batchmany
SELECT account_id, id, pet_id, quantity, ship_date, complete
FROM orders
WHERE account_id = @account_id
  AND id = ANY (ARRAY(SELECT unnest(@ids::bigint[])));

-- name: IDsReserve :batchmany
-- Returns ids for new rows of an account, from the sequence of their table.
SELECT nextval((@sequence::text)::regclass)::bigint AS id
FROM generate_series(1, (SELECT @number::int));

-- name: TransactionTime :batchmany
-- Returns now(), which is the default of created_at.
SELECT now()::timestamptz AS now
WHERE @one::int = 1;

-- name: StockWrite :batchexec
-- The updates look up each row by its key. With a join to the arrays, a plan made for a
-- small table would read all rows of the account when the table has grown. Citus crashes
-- if an update sets a column to a subscript itself, hence the coalesce.
UPDATE inventory
SET quantity = coalesce((@quantities::bigint[])[array_position(@pet_ids::bigint[], pet_id)], quantity),
    held     = coalesce((@helds::bigint[])[array_position(@pet_ids::bigint[], pet_id)], held)
WHERE account_id = @account_id
  AND pet_id = ANY (ARRAY(SELECT unnest(@pet_ids::bigint[])));

-- name: PetsWrite :batchexec
UPDATE pets
SET category_id = coalesce((@category_ids::bigint[])[array_position(@ids::bigint[], id)], category_id),
    name        = coalesce((@names::text[])[array_position(@ids::bigint[], id)], name),
    name_key    = coalesce((@name_keys::text[])[array_position(@ids::bigint[], id)], name_key),
    status      = coalesce((@statuses::text[])[array_position(@ids::bigint[], id)], status)
WHERE account_id = @account_id
  AND id = ANY (ARRAY(SELECT unnest(@ids::bigint[])));

-- name: OrdersWrite :batchexec
-- An element of ship_dates equal to no_ship_date means NULL, because the arrays that sqlc
-- generates cannot contain NULL.
UPDATE orders
SET ship_date = nullif((@ship_dates::timestamptz[])[array_position(@ids::bigint[], id)], @no_ship_date::timestamptz),
    complete  = coalesce((@completes::boolean[])[array_position(@ids::bigint[], id)], complete)
WHERE account_id = @account_id
  AND id = ANY (ARRAY(SELECT unnest(@ids::bigint[])));

-- name: OrdersDelete :batchexec
DELETE FROM orders
WHERE account_id = @account_id
  AND id = ANY (ARRAY(SELECT unnest(@ids::bigint[])));

-- name: OrdersInsert :batchexec
INSERT INTO orders (account_id, id, pet_id, quantity, ship_date)
SELECT account_state.account_id, placed.id, placed.pet_id, placed.quantity, nullif(placed.ship_date, @no_ship_date::timestamptz)
FROM (
    SELECT unnest(@ids::bigint[]) AS id, unnest(@pet_ids::bigint[]) AS pet_id,
           unnest(@quantities::bigint[]) AS quantity, unnest(@ship_dates::timestamptz[]) AS ship_date
) AS placed
LEFT JOIN account_state ON account_state.account_id = @account_id;

-- name: PetsInsert :batchexec
INSERT INTO pets (account_id, id, category_id, name, name_key, status)
SELECT account_state.account_id, made.id, made.category_id, made.name, made.name_key, made.status
FROM (
    SELECT unnest(@ids::bigint[]) AS id, unnest(@category_ids::bigint[]) AS category_id, unnest(@names::text[]) AS name,
           unnest(@name_keys::text[]) AS name_key, unnest(@statuses::text[]) AS status
) AS made
LEFT JOIN account_state ON account_state.account_id = @account_id;

-- name: StockInsert :batchexec
-- Creates the inventory entries of new pets.
INSERT INTO inventory (account_id, pet_id)
SELECT account_state.account_id, made.pet_id
FROM (SELECT unnest(@pet_ids::bigint[]) AS pet_id) AS made
LEFT JOIN account_state ON account_state.account_id = @account_id;

-- name: StockDelete :batchexec
DELETE FROM inventory
WHERE account_id = @account_id
  AND pet_id = @pet_id;

-- name: PetDelete :batchexec
DELETE FROM pets
WHERE account_id = @account_id
  AND id = @id;

-- name: CategoryInsert :batchexec
-- Fails with unique_violation if the name is taken.
INSERT INTO categories (account_id, id, name, name_key, description)
VALUES (@account_id, @id, @name, @name_key, sqlc.narg(description));

-- name: CategoryWrite :batchexec
-- Fails with unique_violation if the name is taken.
UPDATE categories
SET name        = @name,
    name_key    = @name_key,
    description = sqlc.narg(description)
WHERE account_id = @account_id
  AND id = @id;

-- name: CategoryDelete :batchexec
DELETE FROM categories
WHERE account_id = @account_id
  AND id = @id;

-- name: MessagesInsert :batchexec
INSERT INTO messages (account_id, id, message)
SELECT account_state.account_id, sent.id, sent.message
FROM (SELECT unnest(@ids::text[]) AS id, unnest(@messages::text[]) AS message) AS sent
LEFT JOIN account_state ON account_state.account_id = @account_id;

-- name: EventsAppend :batchexec
-- Numbers events and inserts them (see migrations/00013_create_events.sql). Writers of an
-- account wait here for each other, so this statement comes last, together with COMMIT. So
-- the numbers have no gaps and follow the order of the commits. It stores the newest ids of a
-- sandbox too.
SELECT append_events(@account_id, @nonce, @types::text[], @subjects::text[], @data::text[], @last_category_id, @last_pet_id, @last_order_id, @last_message_id);

-- name: IdempotencyKeyDelete :batchexec
-- Deletes an expired response that the sweep has not deleted yet.
DELETE FROM idempotency_keys
WHERE account_id = @account_id
  AND api_key_id = @api_key_id
  AND key = @key;

-- name: IdempotencyKeysInsert :batchexec
-- Stores responses. Fails with unique_violation if one is stored under the key. The time
-- is not the start of the transaction, which may have begun before a reset that it waited for.
INSERT INTO idempotency_keys (account_id, api_key_id, key, fingerprint, status, location, body, created_at)
SELECT account_state.account_id, done.api_key_id, done.key, done.fingerprint, done.status, done.location, done.body, statement_timestamp()
FROM (
    SELECT unnest(@api_key_ids::bigint[]) AS api_key_id, unnest(@keys::text[]) AS key, unnest(@fingerprints::bytea[]) AS fingerprint,
           unnest(@statuses::int[]) AS status, unnest(@locations::text[]) AS location, unnest(@bodies::bytea[]) AS body
) AS done
LEFT JOIN account_state ON account_state.account_id = @account_id;

-- name: StandbyAwait :batchexec
-- As [StandbyAwaitHere], but on a sharded cluster where the account is.
SELECT pg_logical_emit_message(true, 'petstore', '')
FROM account_state
WHERE account_id = @account_id;

-- The statements of groups whose writes belong to several accounts. They lock and read the
-- same rows in the same way, but name each row by its account and id. LATERAL with LIMIT makes
-- the planner look up each row, whatever it expects. A sharded cluster has no such groups.

-- name: StoresTryEnter :batchmany
-- Locks the stores of sandboxes as [SandboxTryEnter], and returns those that it has locked.
SELECT wanted.account_id::bigint AS account_id
FROM (SELECT unnest(@account_ids::bigint[]) AS account_id) AS wanted
WHERE pg_try_advisory_xact_lock(hashtextextended('store', wanted.account_id));

-- name: StoresRead :batchmany
-- Tells whether sandboxes are being deleted, and returns their newest orders. It runs after the
-- lock.
SELECT account_id, closed, last_order_id
FROM account_state
WHERE account_id = ANY (ARRAY(SELECT unnest(@account_ids::bigint[])));

-- name: StoreKeysLock :batchmany
-- Locks Idempotency-Keys as [IdempotencyKeysLock].
SELECT wanted.api_key_id::bigint AS api_key_id, wanted.key::text AS key
FROM (SELECT unnest(@api_key_ids::bigint[]) AS api_key_id, unnest(@keys::text[]) AS key) AS wanted
WHERE pg_try_advisory_xact_lock(hashtextextended('idempotency ' || wanted.key, wanted.api_key_id));

-- name: StoreKeysGet :batchmany
-- Returns the stored responses of keys as [IdempotencyKeysGet].
SELECT stored.api_key_id, stored.key, stored.fingerprint, stored.status, stored.location, stored.body, stored.expired
FROM (
    SELECT unnest((SELECT @account_ids::bigint[])) AS account_id, unnest((SELECT @api_key_ids::bigint[])) AS api_key_id,
           unnest((SELECT @keys::text[])) AS key
) AS wanted
CROSS JOIN LATERAL (
    SELECT idempotency_keys.api_key_id, idempotency_keys.key, idempotency_keys.fingerprint, idempotency_keys.status,
           idempotency_keys.location, idempotency_keys.body,
           (idempotency_keys.created_at <= now() - interval '24 hours'
               OR EXISTS (SELECT FROM account_state WHERE account_state.account_id = wanted.account_id AND account_state.reset_at >= idempotency_keys.created_at))::boolean AS expired
    FROM idempotency_keys
    WHERE idempotency_keys.account_id = wanted.account_id
      AND idempotency_keys.api_key_id = wanted.api_key_id
      AND idempotency_keys.key = wanted.key
    LIMIT 1
) AS stored;

-- name: StorePetsLock :batchmany
-- Locks pets and returns them with their stock as [PetsLock].
SELECT locked.account_id, locked.id, locked.category_id, locked.name, locked.name_key, locked.status, locked.quantity, locked.held
FROM (SELECT unnest((SELECT @account_ids::bigint[])) AS account_id, unnest((SELECT @ids::bigint[])) AS id) AS wanted
CROSS JOIN LATERAL (
    SELECT pets.account_id, pets.id, pets.category_id, pets.name, pets.name_key, pets.status, inventory.quantity, inventory.held
    FROM inventory
    JOIN pets ON pets.account_id = wanted.account_id AND pets.id = inventory.pet_id
    WHERE inventory.account_id = wanted.account_id
      AND inventory.pet_id = wanted.id
    LIMIT 1
    FOR NO KEY UPDATE SKIP LOCKED
) AS locked;

-- name: StoresWrite :batchmany
-- Writes what a group has decided for the accounts whose feed it can lock, and returns them
-- (see migrations/00018_write_stores.sql). It comes last, together with COMMIT.
SELECT write_stores(
    @account_ids::bigint[], @new_events::bigint[], @last_order_ids::bigint[],
    @stock_accounts::bigint[], @stock_pets::bigint[], @quantities::bigint[], @helds::bigint[],
    @pet_accounts::bigint[], @pet_ids::bigint[], @category_ids::bigint[], @names::text[], @name_keys::text[], @statuses::text[],
    @order_accounts::bigint[], @order_ids::bigint[], @order_pets::bigint[], @order_quantities::bigint[], @ship_dates::timestamptz[], @no_ship_date::timestamptz,
    @key_accounts::bigint[], @key_api_keys::bigint[], @keys::text[], @fingerprints::bytea[], @key_statuses::int[], @locations::text[], @bodies::bytea[],
    @event_accounts::bigint[], @later_events::bigint[], @nonce::bigint, @types::text[], @subjects::text[], @documents::text[]
)::bigint AS account_id;

-- A sample is a store that sandboxes start as, of an account without API keys.

-- name: SampleGet :one
-- Returns a sample of an account by its name. A built-in one has no parent.
SELECT id, name, created_at
FROM accounts
WHERE (parent_id = sqlc.narg(parent_id)::bigint OR sqlc.narg(parent_id)::bigint IS NULL AND parent_id IS NULL) -- IS NOT DISTINCT FROM uses no index
  AND name = @name
  AND kind = 'sample'
  AND deleted_at IS NULL;

-- name: SampleList :many
-- Returns all samples of an account, which has few.
SELECT id, name, created_at
FROM accounts
WHERE parent_id = @parent_id::bigint
  AND kind = 'sample'
  AND deleted_at IS NULL
ORDER BY name
LIMIT 100;

-- name: SampleCount :one
-- Counts the samples of an account, and those among them that are not deleted.
SELECT count(*) AS stored, count(*) FILTER (WHERE deleted_at IS NULL) AS live
FROM accounts
WHERE parent_id = @parent_id::bigint
  AND kind = 'sample';

-- name: SampleCreate :one
-- Call [AccountStateEnsure] in the same transaction.
INSERT INTO accounts (kind, parent_id, name)
VALUES ('sample', sqlc.narg(parent_id), @name)
RETURNING id, name, created_at;

-- name: BuiltInSamplesLock :exec
-- Locks the creation of built-in samples until the transaction ends.
SELECT pg_advisory_xact_lock(hashtextextended('built-in samples', 0));

-- A store is copied from one account to another: from a sandbox to a sample, and from a sample
-- to a sandbox. No row passes through the process. On a sharded cluster, the accounts may be on
-- different nodes, and the coordinator copies the rows.

-- name: StoreCopyCategories :exec
INSERT INTO categories (account_id, id, name, name_key, description)
SELECT @account_id::bigint, id, name, name_key, description
FROM categories
WHERE categories.account_id = @source_id;

-- name: StoreCopyPets :exec
INSERT INTO pets (account_id, id, category_id, name, name_key, status)
SELECT @account_id::bigint, id, category_id, name, name_key, status
FROM pets
WHERE pets.account_id = @source_id;

-- name: StoreCopyInventory :exec
INSERT INTO inventory (account_id, pet_id, quantity, held)
SELECT @account_id::bigint, pet_id, quantity, held
FROM inventory
WHERE inventory.account_id = @source_id;

-- name: StoreCopyOrders :exec
INSERT INTO orders (account_id, id, pet_id, quantity, ship_date, complete)
SELECT @account_id::bigint, id, pet_id, quantity, ship_date, complete
FROM orders
WHERE orders.account_id = @source_id;

-- name: StoreCopyMessages :exec
-- The copies are new: a message waits for its delivery from its creation. The text of a message never
-- changes, so a reset does not write it again, because texts are most of a large store. Deliveries lock
-- messages in the same order.
INSERT INTO messages (account_id, id, message, status)
SELECT @account_id::bigint, id, message, status
FROM messages
WHERE messages.account_id = @source_id
ORDER BY id
ON CONFLICT (account_id, id) DO UPDATE
SET status     = excluded.status,
    created_at = excluded.created_at;

-- name: StoreRemoveMessages :exec
-- Deletes the messages of a sandbox that its sample does not have. Call it after [StoreCopyMessages],
-- because such messages have greater ids.
DELETE FROM messages
WHERE messages.account_id = @account_id
  AND messages.id = ANY (ARRAY(
      SELECT added.id
      FROM (SELECT m.id FROM messages AS m WHERE m.account_id = @account_id
            EXCEPT
            SELECT m.id FROM messages AS m WHERE m.account_id = @source_id) AS added
      ORDER BY added.id));

-- name: StoreSize :one
-- Returns about how many bytes the copy of a store adds to the log of PostgreSQL: a kilobyte for each row
-- with its index entries, and the texts of messages, whose lengths it knows without reading them.
SELECT (1024 * ((SELECT count(*) FROM categories WHERE categories.account_id = @account_id)
              + (SELECT count(*) FROM pets WHERE pets.account_id = @account_id)
              + (SELECT count(*) FROM inventory WHERE inventory.account_id = @account_id)
              + (SELECT count(*) FROM orders WHERE orders.account_id = @account_id)
              + (SELECT count(*) FROM messages WHERE messages.account_id = @account_id))
      + (SELECT coalesce(sum(octet_length(messages.message)), 0) FROM messages WHERE messages.account_id = @account_id))::bigint AS bytes
FROM account_state
WHERE account_state.account_id = @account_id;

-- name: StoreNewestIDs :one
-- Returns the newest ids of a sandbox or a sample.
SELECT last_category_id, last_pet_id, last_order_id, last_message_id
FROM account_state
WHERE account_id = @account_id;

-- name: StoreSetNewestIDs :exec
UPDATE account_state
SET last_category_id = @last_category_id,
    last_pet_id      = @last_pet_id,
    last_order_id    = @last_order_id,
    last_message_id  = @last_message_id
WHERE account_id = @account_id;

-- Sample data is copied with ids that internal/seed chooses.

-- name: SampleCategories :copyfrom
INSERT INTO categories (account_id, id, name, name_key, description)
VALUES ($1, $2, $3, $4, $5);

-- name: SamplePets :copyfrom
INSERT INTO pets (account_id, id, category_id, name, name_key, status)
VALUES ($1, $2, $3, $4, $5, $6);

-- name: SampleInventory :copyfrom
INSERT INTO inventory (account_id, pet_id, quantity, held)
VALUES ($1, $2, $3, $4);

-- name: SampleOrders :copyfrom
INSERT INTO orders (account_id, id, pet_id, quantity, ship_date, complete)
VALUES ($1, $2, $3, $4, $5, $6);

-- name: SampleStoreIsEmpty :one
-- Tells whether a store has neither categories nor pets.
SELECT (NOT EXISTS (SELECT FROM categories WHERE categories.account_id = @account_id)
    AND NOT EXISTS (SELECT FROM pets WHERE pets.account_id = @account_id))::boolean AS empty;

-- name: SampleReserveIDs :one
-- Returns the first of a range of new ids from a sequence. Other accounts may get some of
-- them too, which does not matter: ids are unique within an account.
SELECT min(drawn.id)::bigint
FROM (SELECT nextval((@sequence::text)::regclass) AS id FROM generate_series(1, @number::bigint)) AS drawn;

-- Sandboxes are accounts with a parent, and start as a sample (queries/samples.sql). Writes to the store of a sandbox take an
-- advisory lock of its account first: changes of its keys share it, and a group of
-- writes, a reset and a deletion hold it alone. Unlike the lock of a row, an advisory
-- lock is granted in the order of arrival, so a reset gets its turn while others write.
-- It is taken through a row of the account, so that on a sharded cluster it is taken
-- where the account is.
--
-- The statement after the lock sees what the previous holder has committed.

-- name: StoreLockShared :exec
SELECT pg_advisory_xact_lock_shared(hashtextextended('store', @account_id::bigint))
FROM account_state
WHERE account_id = @account_id;

-- name: StoreLock :exec
SELECT pg_advisory_xact_lock(hashtextextended('store', @account_id::bigint))
FROM account_state
WHERE account_id = @account_id;

-- name: StoreIsClosed :one
-- Tells whether the account is being deleted. No row means that it is gone.
SELECT closed
FROM account_state
WHERE account_id = @account_id;

-- name: StoreClose :exec
UPDATE account_state
SET closed = true
WHERE account_id = @account_id;

-- name: StoreResetNow :exec
-- Ends the replay of all responses that are stored by now. The transaction must hold
-- [StoreLock].
UPDATE account_state
SET reset_at = statement_timestamp()
WHERE account_id = @account_id;

-- name: SandboxesLock :exec
-- Locks the number of sandboxes and samples of an account until the transaction ends.
SELECT pg_advisory_xact_lock(hashtextextended('sandboxes', @account_id::bigint))
FROM account_state
WHERE account_id = @account_id;

-- name: SandboxCreate :one
-- The sandbox expires at expires_at, or else after a time, but no later than not_after, if
-- that is set. Call [AccountStateEnsure] in the same transaction.
INSERT INTO accounts (kind, parent_id, name, sample_id, sample, expires_at)
VALUES ('sandbox', @parent_id::bigint, @name, @sample_id::bigint, @sample::text, least(coalesce(sqlc.narg(expires_at)::timestamptz, now() + make_interval(secs => @expires_in_seconds::bigint)), sqlc.narg(not_after)::timestamptz))
RETURNING id, name, coalesce(sample, '')::text AS sample, created_at, expires_at;

-- name: SandboxGet :one
-- Returns a live sandbox of the account.
SELECT id, name, coalesce(sample, '')::text AS sample, created_at, expires_at
FROM accounts
WHERE id = @id
  AND parent_id = @parent_id::bigint
  AND deleted_at IS NULL
  AND expires_at > now();

-- name: SandboxList :many
-- Returns the live sandboxes of the account.
SELECT id, name, coalesce(sample, '')::text AS sample, created_at, expires_at
FROM accounts
WHERE parent_id = @parent_id::bigint
  AND deleted_at IS NULL
  AND expires_at > now()
  AND id > @after_id
ORDER BY id
LIMIT @page_size;

-- name: SandboxCount :one
-- Counts the sandboxes of an account that the sweep has not deleted yet, and the live ones.
SELECT count(*) AS stored, count(*) FILTER (WHERE deleted_at IS NULL AND expires_at > now()) AS live
FROM accounts
WHERE parent_id = @parent_id::bigint
  AND kind = 'sandbox';

-- name: AccountsOf :many
-- Returns the ids of an account and of its sandboxes, without deleted ones.
SELECT id
FROM accounts
WHERE (id = @id OR parent_id = @id AND kind = 'sandbox')
  AND deleted_at IS NULL
ORDER BY id
LIMIT 1000;

-- name: AccountDelete :many
-- Marks an account, its sandboxes and its samples as deleted, and returns their ids. The sweep
-- deletes their data.
UPDATE accounts
SET deleted_at = now()
WHERE (id = @id OR parent_id = @id)
  AND deleted_at IS NULL
RETURNING id;

-- name: AccountsToSweep :many
-- Returns for each payer an account whose data is to be deleted, first one that had no turn:
-- accounts that were deleted and sandboxes that expired at least a minute ago. By then no request of
-- theirs is in progress, so none sees a part of the data. An account comes after its sandboxes and
-- samples, and a sample after its sandboxes: their rows refer to it.
SELECT DISTINCT ON (coalesce(accounts.parent_id, accounts.id)) accounts.id
FROM accounts
WHERE least(accounts.deleted_at, accounts.expires_at) <= now() - interval '1 minute'
  AND NOT EXISTS (SELECT FROM accounts AS child WHERE child.parent_id = accounts.id)
  AND NOT EXISTS (SELECT FROM accounts AS sandbox WHERE sandbox.sample_id = accounts.id)
  AND accounts.id <> ALL (@skipped::bigint[])
ORDER BY coalesce(accounts.parent_id, accounts.id), accounts.id = ANY (@had_turns::bigint[]), accounts.id;

-- name: StoreTryLockSweep :one
-- Locks the sweep of an account until the transaction ends. Returns false if another
-- process has locked it. Between two transactions of a sweep, another may take over.
SELECT pg_try_advisory_xact_lock(hashtextextended('sweep', @account_id::bigint))
FROM account_state
WHERE account_id = @account_id;

-- The deletion of a store, in this order, because each table refers to the next. Each
-- statement deletes a batch. In the sweep, a batch is a transaction of its own. A reset
-- deletes all batches in one transaction, but messages with [StoreRemoveMessages].
-- It leaves the stored responses, because their number has no bound.
--
-- With <=, PostgreSQL reads only the batch. With ANY, it may read all rows of the account for each
-- batch, if it expects few. In tables with n_distinct = 100, it expects many.

-- name: StoreDeleteOrders :execrows
DELETE FROM orders
WHERE orders.account_id = @account_id
  AND orders.id = ANY (ARRAY(SELECT o.id FROM orders AS o WHERE o.account_id = @account_id ORDER BY o.id LIMIT @batch_size));

-- name: StoreDeleteInventory :execrows
DELETE FROM inventory
WHERE inventory.account_id = @account_id
  AND inventory.pet_id = ANY (ARRAY(SELECT i.pet_id FROM inventory AS i WHERE i.account_id = @account_id ORDER BY i.pet_id LIMIT @batch_size));

-- name: StoreDeletePets :execrows
DELETE FROM pets
WHERE pets.account_id = @account_id
  AND pets.id = ANY (ARRAY(SELECT p.id FROM pets AS p WHERE p.account_id = @account_id ORDER BY p.id LIMIT @batch_size));

-- name: StoreDeleteCategories :execrows
DELETE FROM categories
WHERE categories.account_id = @account_id
  AND categories.id = ANY (ARRAY(SELECT c.id FROM categories AS c WHERE c.account_id = @account_id ORDER BY c.id LIMIT @batch_size));

-- name: StoreDeleteMessages :execrows
DELETE FROM messages
WHERE messages.account_id = @account_id
  AND messages.id = ANY (ARRAY(SELECT m.id FROM messages AS m WHERE m.account_id = @account_id ORDER BY m.id LIMIT @batch_size));

-- name: StoreDeleteIdempotencyKeys :execrows
DELETE FROM idempotency_keys
WHERE idempotency_keys.account_id = @account_id
  AND (idempotency_keys.api_key_id, idempotency_keys.key) <= (
      SELECT batch.api_key_id, batch.key
      FROM (SELECT k.api_key_id, k.key FROM idempotency_keys AS k WHERE k.account_id = @account_id ORDER BY k.api_key_id, k.key LIMIT @batch_size) AS batch
      ORDER BY batch.api_key_id DESC, batch.key DESC LIMIT 1);

-- name: StoreDeleteFaults :execrows
-- A sandbox has at most 20.
DELETE FROM sandbox_faults
WHERE account_id = @account_id;

-- name: StoreDeleteKeyUses :execrows
DELETE FROM api_key_uses
WHERE api_key_uses.account_id = @account_id
  AND api_key_uses.api_key_id = ANY (ARRAY(SELECT u.api_key_id FROM api_key_uses AS u WHERE u.account_id = @account_id ORDER BY u.api_key_id LIMIT @batch_size));

-- name: APIKeyDeleteSome :execrows
DELETE FROM api_keys
WHERE api_keys.account_id = @account_id
  AND api_keys.id = ANY (ARRAY(SELECT k.id FROM api_keys AS k WHERE k.account_id = @account_id ORDER BY k.id LIMIT @batch_size));

-- name: StoreDeleteState :execrows
DELETE FROM account_state
WHERE account_id = @account_id;

-- name: AccountForget :execrows
-- Deletes the row of an account, as the last of its rows.
DELETE FROM accounts
WHERE id = @id;

-- Faults on demand.

-- name: FaultList :many
-- Returns the rules of a sandbox, in order.
SELECT id, position, operation, effect, status, delay_ms, close_when, first, probability, seed, matched
FROM sandbox_faults
WHERE account_id = @account_id
ORDER BY position
LIMIT 20;

-- name: FaultCreate :exec
INSERT INTO sandbox_faults (account_id, position, operation, effect, status, delay_ms, close_when, first, probability, seed)
VALUES (@account_id, @position, @operation, @effect, sqlc.narg(status), sqlc.narg(delay_ms), sqlc.narg(close_when), sqlc.narg(first), sqlc.narg(probability), sqlc.narg(seed));

-- name: FaultAnnounce :exec
-- Announces to all processes that the rules of a sandbox have changed.
SELECT pg_notify('api_keys', 'account ' || @account_id::bigint);

-- name: FaultCount :many
-- Counts requests that match rules. It returns for each rule the number of the last request,
-- from 1. It counts nothing and returns no row if the rules have been replaced or started
-- again, because both change all ids. The lock comes first: two counts would deadlock if they
-- changed the rules in different orders.
UPDATE sandbox_faults
SET matched = sandbox_faults.matched + @requests
WHERE sandbox_faults.account_id = @account_id
  AND sandbox_faults.id = ANY (ARRAY(
      SELECT f.id
      FROM sandbox_faults AS f
      WHERE f.account_id = @account_id
        AND f.id = ANY (ARRAY(SELECT unnest(@ids::bigint[])))
      ORDER BY f.id
      FOR NO KEY UPDATE))
RETURNING sandbox_faults.id, sandbox_faults.matched;

-- name: FaultRestart :exec
-- Starts the counts of all rules again, when the sandbox is reset. The rules get new ids, so that a
-- process that remembers the old counts reads the rules before it counts. FaultCreate takes
-- ids from a sequence, which does not get as far.
UPDATE sandbox_faults
SET id = id + 4294967296, matched = 0
WHERE account_id = @account_id;

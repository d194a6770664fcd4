-- queries/groupcommit.sql has the other statements.

-- name: StandbyAwaitHere :exec
-- Makes the commit of this transaction wait for the synchronous standby, as a
-- commit that changes rows does. Otherwise the commit of a read-only transaction
-- returns at once. The message follows everything in the WAL that the transaction
-- has read, so a standby that has the message has that too. Every role may send it,
-- and nothing reads it.
SELECT pg_logical_emit_message(true, 'petstore', '');

-- name: IdempotencyKeysTryLockSweep :one
-- Locks the sweep until the transaction ends. Returns false if another process sweeps.
SELECT pg_try_advisory_xact_lock(hashtextextended('sweep of idempotency keys', 0));

-- name: IdempotencyKeySweep :many
-- Deletes some of the expired responses of all accounts, from the oldest on, and returns their
-- times. Pass the latest time to the next batch, which then skips the index entries of the
-- deleted rows. They stay while an old snapshot is open. [IdempotencyKeysGet], [StoreKeysGet]
-- and keysLast of package transfer have the 24 hours too. The transaction must hold the
-- lock of [IdempotencyKeysTryLockSweep]: two sweeps could wait for each other's rows. A
-- sharded cluster cannot skip locked rows of several accounts. The CTE runs once in every
-- plan. A subquery in the WHERE could run again for each row and exceed the batch. Citus runs
-- it before the DELETE, so the row of a key may be new by then. With <=, no plan joins by the time.
WITH expired AS MATERIALIZED (
    SELECT account_id, api_key_id, key, created_at
    FROM idempotency_keys
    WHERE created_at >= @oldest::timestamptz
      AND created_at <= now() - interval '24 hours'
    ORDER BY created_at
    LIMIT @batch_size
)
DELETE FROM idempotency_keys
USING expired
WHERE idempotency_keys.account_id = expired.account_id
  AND idempotency_keys.api_key_id = expired.api_key_id
  AND idempotency_keys.key = expired.key
  AND idempotency_keys.created_at <= expired.created_at
RETURNING idempotency_keys.created_at;

-- name: IdempotencyKeyLock :one
-- Locks a key until the transaction ends. Returns false if another request holds
-- it. The lock is taken through a row of the account, so that on a sharded cluster
-- it is taken where the account is. The client chooses the key, so the prefix keeps it
-- apart from the other advisory locks.
SELECT pg_try_advisory_xact_lock(hashtextextended('idempotency ' || @key::text, @api_key_id::bigint))
FROM account_state
WHERE account_id = @account_id;

-- name: IdempotencyKeyGet :one
-- Returns a stored response that is not older than 24 hours or the last reset.
SELECT fingerprint, status, location, body
FROM idempotency_keys
WHERE idempotency_keys.account_id = @account_id
  AND api_key_id = @api_key_id
  AND key = @key
  AND created_at > now() - interval '24 hours'
  AND NOT EXISTS (SELECT FROM account_state WHERE account_state.account_id = @account_id AND account_state.reset_at >= idempotency_keys.created_at);

-- name: AwaitStandby :exec
-- Makes the commit of this transaction wait for the synchronous standby, as a
-- commit that changes rows does. Otherwise the commit of a read-only transaction
-- returns at once. The message follows everything in the WAL that the transaction
-- has read, so a standby that has the message has that too. Every role may send it,
-- and nothing reads it.
SELECT pg_logical_emit_message(true, 'petstore', '');

-- name: IdempotencyKeyKeep :exec
-- Stores a response. Replaces an expired one that the sweep has not deleted yet. The
-- time is not that of the transaction, which may have begun before a reset that it
-- waited for.
INSERT INTO idempotency_keys (account_id, api_key_id, key, fingerprint, status, location, body, created_at)
VALUES (@account_id, @api_key_id, @key, @fingerprint, @status, @location, @body, clock_timestamp())
ON CONFLICT ON CONSTRAINT idempotency_keys_pkey DO UPDATE
SET fingerprint = excluded.fingerprint,
    status      = excluded.status,
    location    = excluded.location,
    body        = excluded.body,
    created_at  = excluded.created_at;

-- name: IdempotencyKeySweep :execrows
-- Deletes some of the expired responses of all accounts. Several processes may
-- sweep concurrently: each skips rows that another deletes. The CTE runs once in
-- every plan. A subquery in the WHERE could run again for each row, skip the locked
-- rows each time, and exceed the batch.
WITH expired AS MATERIALIZED (
    SELECT account_id, api_key_id, key
    FROM idempotency_keys
    WHERE created_at <= now() - interval '24 hours'
    ORDER BY created_at
    LIMIT @batch_size
    FOR UPDATE SKIP LOCKED
)
DELETE FROM idempotency_keys
USING expired
WHERE idempotency_keys.account_id = expired.account_id
  AND idempotency_keys.api_key_id = expired.api_key_id
  AND idempotency_keys.key = expired.key;

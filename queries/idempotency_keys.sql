-- queries/groupcommit.sql has the other statements.

-- name: AwaitStandby :exec
-- Makes the commit of this transaction wait for the synchronous standby, as a
-- commit that changes rows does. Otherwise the commit of a read-only transaction
-- returns at once. The message follows everything in the WAL that the transaction
-- has read, so a standby that has the message has that too. Every role may send it,
-- and nothing reads it.
SELECT pg_logical_emit_message(true, 'petstore', '');

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

-- The feed of an account. queries/groupcommit.sql has the statements that write it.

-- name: FeedEnd :one
-- Returns the newest event of an account; 0: there is none. No row means that the account
-- is gone.
SELECT last_sequence, last_nonce
FROM account_state
WHERE account_id = @account_id;

-- name: FeedEnds :many
-- Returns the newest events of accounts, for the requests that wait for one.
SELECT account_id, last_sequence
FROM account_state
WHERE account_id = ANY (@account_ids::bigint[]);

-- name: EventOldest :one
-- Returns the oldest event that is kept.
SELECT sequence, nonce
FROM events
WHERE account_id = @account_id
ORDER BY sequence
LIMIT 1;

-- name: EventWindowEnd :one
-- Returns the last event in a range of numbers, or else the first one after it: a restore from a
-- backup moves the numbers ahead.
SELECT sequence
FROM (
    (SELECT e.sequence FROM events AS e WHERE e.account_id = @account_id AND e.sequence > @after_sequence AND e.sequence <= @last ORDER BY e.sequence DESC LIMIT 1)
    UNION ALL
    (SELECT e.sequence FROM events AS e WHERE e.account_id = @account_id AND e.sequence > @last ORDER BY e.sequence LIMIT 1)
) AS found
ORDER BY sequence
LIMIT 1;

-- name: EventList :many
-- Returns the events of some types in a range of numbers; without types, all. The first and the
-- last of the range are returned whatever their type, because the cursors of a page name them.
SELECT sequence, created_at, nonce, type, subject, data
FROM events
WHERE account_id = @account_id
  AND sequence >= @first
  AND sequence <= @last
  AND (coalesce(cardinality(@types::text[]), 0) = 0 OR type = ANY (@types) OR sequence IN (@first, @last))
ORDER BY sequence
LIMIT (SELECT @page_size::int);

-- name: ReportEvents :many
-- Returns the newest events after a number that the report on a client reads.
SELECT created_at, type, subject
FROM events
WHERE account_id = @account_id
  AND sequence > @after_sequence
  AND created_at >= @since
  AND type IN ('order.placed', 'store.reset')
ORDER BY sequence DESC
LIMIT 5000;

-- name: StoreDeleteEvents :execrows
-- Deletes a batch of the events of an account that is being deleted.
DELETE FROM events
WHERE events.account_id = @account_id
  AND events.sequence <= (SELECT max(batch.sequence) FROM (SELECT e.sequence FROM events AS e WHERE e.account_id = @account_id ORDER BY e.sequence LIMIT @batch_size) AS batch);

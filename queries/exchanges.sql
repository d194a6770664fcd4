-- The record of the requests of sandboxes.

-- name: ExchangesAppend :many
-- Appends exchanges to the logs of several sandboxes. Returns those whose log another transaction
-- has locked (migrations/00019_create_exchanges.sql).
SELECT append_exchanges(
    @accounts::bigint[], @additions::bigint[], @added_bytes::bigint[], @drops::bigint[],
    @of_accounts::bigint[], @positions::bigint[], @start_bytes::bigint[],
    @started::timestamptz[], @durations::bigint[], @request_ids::text[], @api_key_ids::bigint[], @methods::text[], @paths::text[], @queries::text[],
    @operations::text[], @statuses::integer[], @codes::text[], @idempotency_keys::text[], @faults::text[], @documents::text[],
    @most::bigint, @most_bytes::bigint
)::bigint AS account_id;

-- name: ExchangeEnds :many
-- Returns the numbers of the newest exchanges of sandboxes, for the requests that wait for one.
SELECT account_id, last_number AS last_sequence
FROM exchange_logs
WHERE account_id = ANY (ARRAY(SELECT unnest(@account_ids::bigint[])));

-- name: ExchangeList :many
-- Returns the newest exchanges between two numbers that match. Empty texts and 0 match all.
SELECT number, started_at, microseconds, request_id, api_key_id, method, path, query, operation, status, code, idempotency_key, fault,
       (CASE WHEN @whole::boolean THEN messages ELSE '' END)::text AS messages
FROM exchanges
WHERE account_id = @account_id
  AND number > @after_number
  AND number < @before_number
  AND started_at > now() - interval '24 hours'
  AND (@operation::text = '' OR operation = @operation)
  AND status BETWEEN @first_status AND @last_status
  AND (@api_key_id::bigint = 0 OR api_key_id = @api_key_id)
  AND (@idempotency_key::text = '' OR idempotency_key = @idempotency_key)
ORDER BY number DESC
LIMIT (SELECT @page_size::int);

-- name: ExchangesAfter :many
-- Returns the oldest exchanges after a number that match, as [ExchangeList].
SELECT number, started_at, microseconds, request_id, api_key_id, method, path, query, operation, status, code, idempotency_key, fault,
       ''::text AS messages
FROM exchanges
WHERE account_id = @account_id
  AND number > @after_number
  AND started_at > now() - interval '24 hours'
  AND (@operation::text = '' OR operation = @operation)
  AND status BETWEEN @first_status AND @last_status
  AND (@api_key_id::bigint = 0 OR api_key_id = @api_key_id)
  AND (@idempotency_key::text = '' OR idempotency_key = @idempotency_key)
ORDER BY number
LIMIT (SELECT @page_size::int);

-- name: ExchangeCount :one
-- Counts the exchanges that [ExchangeList] returns.
SELECT count(*)
FROM exchanges
WHERE account_id = @account_id
  AND number > @after_number
  AND number < @before_number
  AND started_at > now() - interval '24 hours'
  AND (@operation::text = '' OR operation = @operation)
  AND status BETWEEN @first_status AND @last_status
  AND (@api_key_id::bigint = 0 OR api_key_id = @api_key_id)
  AND (@idempotency_key::text = '' OR idempotency_key = @idempotency_key);

-- name: ExchangeLogGet :one
-- Returns what the record of a sandbox should have: the exchanges from first_number on. Its oldest one
-- may have a higher number.
SELECT first_number, last_number, dropped
FROM exchange_logs
WHERE account_id = @account_id;

-- name: ExchangeLogEmpty :exec
-- Begins the record of a sandbox again, also before its first request. It takes a number, so the first
-- one of a record that somebody has emptied is above 1. Call [ExchangesDelete] in the same transaction.
INSERT INTO exchange_logs AS log (account_id, first_number, last_number)
SELECT account_state.account_id, 2, 1
FROM account_state
WHERE account_state.account_id = @account_id
ON CONFLICT (account_id) DO UPDATE
SET first_number = log.last_number + 2,
    last_number  = log.last_number + 1,
    dropped      = 0;

-- name: ExchangesDelete :exec
-- Deletes the exchanges of a sandbox.
DELETE FROM exchanges
WHERE account_id = @account_id;

-- name: ExchangeLogsPage :many
-- Returns sandboxes with a log, by id, and whether the exchange with the lowest number is older than
-- 24 hours. With min instead of LIMIT, Citus runs it on each shard.
SELECT logs.account_id, coalesce((
    SELECT e.started_at <= now() - interval '24 hours'
    FROM exchanges AS e
    WHERE e.account_id = logs.account_id
      AND e.number = (SELECT min(oldest.number) FROM exchanges AS oldest WHERE oldest.account_id = logs.account_id)
), false)::boolean AS has_old
FROM exchange_logs AS logs
WHERE logs.account_id > @after_id
ORDER BY logs.account_id
LIMIT @page_size;

-- name: ExchangesExpire :exec
-- Deletes the exchanges of a sandbox that are older than 24 hours. It looks at the oldest ones
-- only: their numbers are the lowest.
DELETE FROM exchanges
WHERE exchanges.account_id = @account_id
  AND exchanges.number < coalesce((
      SELECT kept.number
      FROM exchanges AS kept
      WHERE kept.account_id = @account_id
        AND kept.started_at > now() - interval '24 hours'
      ORDER BY kept.number
      LIMIT 1
  ), 9223372036854775807);

-- name: StoreDeleteExchanges :execrows
DELETE FROM exchanges
WHERE exchanges.account_id = @account_id
  AND exchanges.number <= (SELECT max(batch.number) FROM (SELECT e.number FROM exchanges AS e WHERE e.account_id = @account_id ORDER BY e.number LIMIT @batch_size) AS batch);

-- name: StoreDeleteExchangeLog :execrows
DELETE FROM exchange_logs
WHERE account_id = @account_id;

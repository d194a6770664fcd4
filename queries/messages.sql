-- name: MessageGet :one
SELECT account_id, id, message, status, created_at
FROM messages
WHERE account_id = @account_id
  AND id = @id;

-- name: MessageGetMany :many
-- Returns messages with the number of the newest event of their account, for the requests
-- that wait for a change. The ids limit the rows: they are at most 100.
SELECT sqlc.embed(m), s.last_sequence
FROM messages AS m
JOIN account_state AS s ON s.account_id = m.account_id
WHERE m.account_id = @account_id
  AND s.account_id = @account_id
  AND m.id = ANY (ARRAY(SELECT unnest(@ids::text[])));

-- name: MessageList :many
-- Newest first, because ids are ordered by time.
SELECT account_id, id, message, status, created_at
FROM messages
WHERE account_id = @account_id
  AND id < @before_id
ORDER BY id DESC
LIMIT (SELECT @page_size::int);

-- name: MessageCount :one
-- For Prefer: count=exact.
SELECT count(*)
FROM messages
WHERE account_id = @account_id;

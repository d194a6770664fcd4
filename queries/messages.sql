-- name: MessageGet :one
SELECT account_id, id, message, status, created_at
FROM messages
WHERE account_id = @account_id
  AND id = @id;

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

-- name: APIKeyCreate :one
INSERT INTO api_keys (account_id, name, scope, prefix, secret_sha256, expires_at)
VALUES (@account_id, @name, @scope, @prefix, @secret_sha256, sqlc.narg(expires_at))
RETURNING id;

-- name: APIKeyVerify :one
-- Revoked keys are not found; whether a key has expired is asked at each use.
SELECT id, account_id, scope, prefix, expires_at
FROM api_keys
WHERE secret_sha256 = @secret_sha256
  AND revoked_at IS NULL;

-- name: APIKeyList :many
SELECT id, name, scope, prefix, created_at, expires_at, last_used_at, revoked_at
FROM api_keys
WHERE account_id = @account_id
ORDER BY id
LIMIT @page_size;

-- name: APIKeyRevoke :many
-- By id or by prefix; again is no error and moves nothing. Every process hears
-- of it on the channel api_keys, once the transaction has committed.
WITH revoked AS (
    UPDATE api_keys
    SET revoked_at = coalesce(revoked_at, now())
    WHERE id = sqlc.narg(id) OR prefix = sqlc.narg(prefix)
    RETURNING id, name, prefix
)
SELECT id, name, prefix, pg_notify('api_keys', id::text)::text AS notified
FROM revoked
ORDER BY id
LIMIT 100;

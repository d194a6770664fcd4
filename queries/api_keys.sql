-- name: APIKeyCreate :one
INSERT INTO api_keys (account_id, name, scope, prefix, secret_sha256, expires_at)
VALUES (@account_id, @name, @scope, @prefix, @secret_sha256, sqlc.narg(expires_at))
RETURNING id, name, scope, prefix, created_at, expires_at, last_used_at, revoked_at;

-- name: APIKeyLookUp :many
-- Returns the keys whose current or previous secret has one of the hashes, at most
-- 100. Revoked keys are omitted. The caller checks at each use whether a key has
-- expired or the grace of a secret has ended.
SELECT id, account_id, scope, prefix, secret_sha256, expires_at, last_used_at, previous_sha256, previous_until
FROM api_keys
WHERE (secret_sha256 = ANY (ARRAY(SELECT unnest(@hashes::bytea[])))
    OR previous_sha256 = ANY (ARRAY(SELECT unnest(@hashes))))
  AND revoked_at IS NULL;

-- name: APIKeyList :many
-- Returns all keys of an account, for the operator.
SELECT id, name, scope, prefix, created_at, expires_at, last_used_at, revoked_at
FROM api_keys
WHERE account_id = @account_id
  AND id > @after_id
ORDER BY id
LIMIT @page_size;

-- name: APIKeyListRecent :many
-- Returns the keys that the API shows: revoked ones only for 30 days.
SELECT id, name, scope, prefix, created_at, expires_at, last_used_at, revoked_at
FROM api_keys
WHERE account_id = @account_id
  AND id > @after_id
  AND (revoked_at IS NULL OR revoked_at > now() - interval '30 days')
ORDER BY id
LIMIT @page_size;

-- name: APIKeyCountRecent :one
-- For Prefer: count=exact.
SELECT count(*)
FROM api_keys
WHERE account_id = @account_id
  AND (revoked_at IS NULL OR revoked_at > now() - interval '30 days');

-- name: APIKeyFind :many
-- Finds keys by id or by prefix. Several keys can share a prefix.
SELECT id, account_id, name, prefix
FROM api_keys
WHERE id = sqlc.narg(id) OR prefix = sqlc.narg(prefix)
ORDER BY id
LIMIT 100;

-- name: APIKeyRotate :one
-- Replaces the current secret, which keeps working for the grace. The secret before
-- it stops. Of two concurrent rotations, the second replaces the secret of the
-- first. No row means that the account has no such key, or that the key is revoked.
WITH rotated AS (
    UPDATE api_keys
    SET prefix          = @prefix,
        secret_sha256   = @secret_sha256,
        previous_sha256 = CASE WHEN @grace_seconds::bigint > 0 THEN secret_sha256 END,
        -- clock_timestamp, because the update may have waited for another one
        previous_until  = CASE WHEN @grace_seconds > 0 THEN clock_timestamp() + make_interval(secs => @grace_seconds) END
    WHERE id = @id
      AND account_id = @account_id
      AND revoked_at IS NULL
    RETURNING id, name, scope, prefix, created_at, expires_at, last_used_at, revoked_at
)
SELECT id, name, scope, prefix, created_at, expires_at, last_used_at, revoked_at,
       pg_notify('api_keys', id::text)::text AS notified
FROM rotated;

-- name: APIKeyRevoke :many
-- Revokes keys by id or by prefix, and returns all that match. A key that is
-- already revoked is neither written nor announced. Other processes are notified on
-- the channel api_keys when the transaction commits.
WITH revoked AS (
    UPDATE api_keys
    SET revoked_at = now()
    WHERE (id = sqlc.narg(id) OR prefix = sqlc.narg(prefix))
      AND revoked_at IS NULL
    RETURNING id
)
SELECT api_keys.id, api_keys.name, api_keys.prefix,
       CASE WHEN revoked.id IS NOT NULL THEN pg_notify('api_keys', revoked.id::text)::text ELSE '' END AS notified
FROM api_keys
LEFT JOIN revoked ON revoked.id = api_keys.id
WHERE api_keys.id = sqlc.narg(id) OR api_keys.prefix = sqlc.narg(prefix)
ORDER BY api_keys.id
LIMIT 100;

-- name: APIKeyGetOwn :one
-- Returns a key of the account, before it is revoked.
SELECT scope, revoked_at
FROM api_keys
WHERE id = @id
  AND account_id = @account_id;

-- name: APIKeyLockAdmins :many
-- Locks the first two live admin keys of the account until the transaction ends, by
-- id. Two are enough to tell whether one is the last. A key that a concurrent
-- transaction revokes is omitted.
SELECT id
FROM api_keys
WHERE account_id = @account_id
  AND scope = 'admin'
  AND revoked_at IS NULL
  AND (expires_at IS NULL OR expires_at > now())
ORDER BY id
LIMIT 2
FOR NO KEY UPDATE;

-- name: APIKeyRevokeOwn :one
-- Revokes a key of the account and announces it. No row means that the account has
-- no such key, or that it is already revoked.
WITH revoked AS (
    UPDATE api_keys
    SET revoked_at = now()
    WHERE id = @id
      AND account_id = @account_id
      AND revoked_at IS NULL
    RETURNING id
)
SELECT pg_notify('api_keys', id::text)::text AS notified
FROM revoked;

-- name: APIKeyMarkUsed :exec
-- Stores when keys were last used. A use less than a minute after the stored one is
-- skipped, so that all processes together write each key at most once a minute.
-- Rows are locked by id, so that two processes never deadlock.
WITH used AS (
    SELECT unnest(@ids::bigint[]) AS id, unnest(@used_at::timestamptz[]) AS used_at
), due AS (
    SELECT api_keys.id, used.used_at
    FROM used
    JOIN api_keys ON api_keys.id = used.id
    WHERE api_keys.last_used_at IS NULL
       OR api_keys.last_used_at <= used.used_at - interval '1 minute'
    ORDER BY api_keys.id
    FOR NO KEY UPDATE OF api_keys
)
UPDATE api_keys
SET last_used_at = due.used_at
FROM due
WHERE api_keys.id = due.id;

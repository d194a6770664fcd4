-- name: APIKeyCreate :one
INSERT INTO api_keys (account_id, name, scope, prefix, secret_sha256, expires_at)
VALUES (@account_id, @name, @scope, @prefix, @secret_sha256, sqlc.narg(expires_at))
RETURNING id, name, scope, prefix, created_at, expires_at, last_used_at, revoked_at;

-- name: APIKeyLookUp :many
-- The keys whose secret, or whose secret before that one, has one of these hashes,
-- of which there are at most 100. Revoked keys are not found; the caller checks at
-- each use whether a key has expired or the grace of a secret has ended.
SELECT id, account_id, scope, prefix, secret_sha256, expires_at, last_used_at, previous_sha256, previous_until
FROM api_keys
WHERE (secret_sha256 = ANY (ARRAY(SELECT unnest(@hashes::bytea[])))
    OR previous_sha256 = ANY (ARRAY(SELECT unnest(@hashes))))
  AND revoked_at IS NULL;

-- name: APIKeyList :many
-- All that an account has had, for its operator.
SELECT id, name, scope, prefix, created_at, expires_at, last_used_at, revoked_at
FROM api_keys
WHERE account_id = @account_id
  AND id > @after_id
ORDER BY id
LIMIT @page_size;

-- name: APIKeyListRecent :many
-- As the account sees them: revoked ones for 30 days.
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
-- By id or by prefix, which few keys share.
SELECT id, account_id, name, prefix
FROM api_keys
WHERE id = sqlc.narg(id) OR prefix = sqlc.narg(prefix)
ORDER BY id
LIMIT 100;

-- name: APIKeyRotate :one
-- Puts a new secret in the place of the present one, which works for the grace; the
-- one before that ends. Of two at once the second finds the secret of the first as
-- the present one. No row: the account has no such key, or it is revoked.
WITH rotated AS (
    UPDATE api_keys
    SET prefix          = @prefix,
        secret_sha256   = @secret_sha256,
        previous_sha256 = CASE WHEN @grace_seconds::bigint > 0 THEN secret_sha256 END,
        -- the time of the change, which may have waited for another
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
-- Revokes any key, by id or by prefix, and returns all that were named. A key that
-- is revoked already is neither written nor announced. Every process hears of the
-- others on the channel api_keys, once the transaction has committed.
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
-- A key of the account, before it is revoked.
SELECT scope, revoked_at
FROM api_keys
WHERE id = @id
  AND account_id = @account_id;

-- name: APIKeyLockAdmins :many
-- The first two live admin keys of the account, locked in the order of their ids
-- until the transaction ends. Two are enough to tell whether one is the last. A key
-- that another transaction revokes while this one waits for it is left out.
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
-- Revokes a key of the account and announces it. No row: the account has no such
-- key, or it is revoked already.
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
-- Keys and when each was used. What is less than a minute after the use that is
-- known is not written, so that the processes together write once a minute. The
-- rows are locked in the order of ids: two processes never wait for each other.
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

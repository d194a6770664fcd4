-- name: APIKeyCreate :one
INSERT INTO api_keys (account_id, name, scope, prefix, secret_sha256, expires_at)
VALUES (@account_id, @name, @scope, @prefix, @secret_sha256, sqlc.narg(expires_at))
RETURNING id, name, scope, prefix, created_at, expires_at, revoked_at;

-- name: KeysLock :exec
-- Locks the number of keys of an account until the transaction ends.
SELECT pg_advisory_xact_lock(hashtextextended('keys', @account_id::bigint))
FROM account_state
WHERE account_id = @account_id;

-- On a sharded cluster, a write to api_keys locks this table and then accounts, also without rows: an insert
-- shares the locks with other inserts, and any other write holds them alone. A transaction that writes
-- accounts and then api_keys would deadlock with them, so it begins with one of these statements.

-- name: KeyTableLockShared :exec
-- Call it before a transaction that inserts keys writes accounts.
INSERT INTO api_keys (account_id, name, scope, prefix, secret_sha256)
SELECT 0, '', '', '', ''
WHERE false;

-- name: KeyTableLock :exec
-- Call it before a transaction that updates keys writes accounts.
SELECT
FROM api_keys
WHERE account_id = 0
FOR NO KEY UPDATE;

-- name: APIKeyCountStored :one
-- Counts the keys in the list of an account, and the live ones: neither revoked nor expired.
SELECT count(*) FILTER (WHERE revoked_at IS NULL OR revoked_at > now() - interval '30 days') AS stored,
       count(*) FILTER (WHERE revoked_at IS NULL AND (expires_at IS NULL OR expires_at > now())) AS live
FROM api_keys
WHERE account_id = @account_id;

-- name: APIKeyLookUp :many
-- Returns the keys whose current or previous secret has one of the hashes, at most
-- 100, with the parent of the account if that is a sandbox. Revoked keys are
-- omitted. The caller checks at each use whether a key has expired or the grace of a
-- secret has ended.
SELECT api_keys.id, api_keys.account_id, accounts.parent_id, api_keys.scope, api_keys.prefix, api_keys.secret_sha256,
       api_keys.expires_at, api_keys.previous_sha256, api_keys.previous_until
FROM api_keys
JOIN accounts ON accounts.id = api_keys.account_id
WHERE (api_keys.secret_sha256 = ANY (ARRAY(SELECT unnest(@hashes::bytea[])))
    OR api_keys.previous_sha256 = ANY (ARRAY(SELECT unnest(@hashes))))
  AND api_keys.revoked_at IS NULL
  AND accounts.deleted_at IS NULL;

-- name: APIKeyGetWithAccount :one
-- Returns a key and its account.
SELECT accounts.id, accounts.name, accounts.created_at,
       api_keys.id         AS key_id,
       api_keys.name       AS key_name,
       api_keys.scope      AS key_scope,
       api_keys.prefix     AS key_prefix,
       api_keys.created_at AS key_created_at,
       api_keys.expires_at, api_key_uses.last_used_at, api_keys.revoked_at
FROM api_keys
JOIN accounts ON accounts.id = api_keys.account_id
LEFT JOIN api_key_uses ON api_key_uses.account_id = @account_id AND api_key_uses.api_key_id = api_keys.id
WHERE api_keys.id = @api_key_id
  AND api_keys.account_id = @account_id;

-- name: APIKeyList :many
-- Returns the keys that the API shows: revoked ones only for 30 days.
SELECT api_keys.id, api_keys.name, api_keys.scope, api_keys.prefix, api_keys.created_at, api_keys.expires_at,
       api_key_uses.last_used_at, api_keys.revoked_at
FROM api_keys
LEFT JOIN api_key_uses ON api_key_uses.account_id = @account_id AND api_key_uses.api_key_id = api_keys.id
WHERE api_keys.account_id = @account_id
  AND api_keys.id > @after_id
  AND (api_keys.revoked_at IS NULL OR api_keys.revoked_at > now() - interval '30 days')
ORDER BY api_keys.id
LIMIT @page_size;

-- name: APIKeyGetRecent :one
-- Returns a key that the API shows.
SELECT api_keys.id, api_keys.name, api_keys.scope, api_keys.prefix, api_keys.created_at, api_keys.expires_at,
       api_key_uses.last_used_at, api_keys.revoked_at
FROM api_keys
LEFT JOIN api_key_uses ON api_key_uses.account_id = @account_id AND api_key_uses.api_key_id = api_keys.id
WHERE api_keys.account_id = @account_id
  AND api_keys.id = @id
  AND (api_keys.revoked_at IS NULL OR api_keys.revoked_at > now() - interval '30 days');

-- name: APIKeysToForget :many
-- Returns keys of all accounts that the API does not show any more.
SELECT account_id, id
FROM api_keys
WHERE revoked_at <= now() - interval '30 days'
  AND id > @after_id
ORDER BY id
LIMIT @page_size;

-- name: APIKeyUsesForget :exec
DELETE FROM api_key_uses
WHERE account_id = @account_id
  AND api_key_id = ANY (ARRAY(SELECT unnest(@ids::bigint[])));

-- name: APIKeysForget :execrows
-- Deletes keys. They must have no stored responses and no uses.
DELETE FROM api_keys
WHERE account_id = @account_id
  AND id = ANY (ARRAY(SELECT unnest(@ids::bigint[])));

-- name: APIKeyFind :many
-- Finds keys of all accounts by id or by prefix. Several keys can share a prefix.
SELECT id, account_id, name, prefix
FROM api_keys
WHERE id = sqlc.narg(id) OR prefix = sqlc.narg(prefix)
ORDER BY id
LIMIT 100;

-- name: APIKeyRotate :one
-- Replaces the current secret, which keeps working for the grace. The secret before
-- it stops. Of two concurrent rotations, the second replaces the secret of the
-- first. No row means that the account has no such key, or that the key is revoked. The
-- transaction must hold [KeysLock], so that the statement begins after the other rotation.
WITH rotated AS (
    UPDATE api_keys
    SET prefix          = @prefix,
        secret_sha256   = @secret_sha256,
        previous_sha256 = CASE WHEN @grace_seconds::bigint > 0 THEN secret_sha256 END,
        previous_until  = CASE WHEN @grace_seconds > 0 THEN statement_timestamp() + make_interval(secs => @grace_seconds) END
    WHERE id = @id
      AND account_id = @account_id
      AND revoked_at IS NULL
    RETURNING id, name, scope, prefix, created_at, expires_at, revoked_at
)
SELECT rotated.id, rotated.name, rotated.scope, rotated.prefix, rotated.created_at, rotated.expires_at,
       api_key_uses.last_used_at, rotated.revoked_at,
       pg_notify('api_keys', rotated.id::text)::text AS notified
FROM rotated
LEFT JOIN api_key_uses ON api_key_uses.account_id = @account_id AND api_key_uses.api_key_id = rotated.id;

-- name: APIKeyGetOwn :one
-- Returns a key of the account, before it is revoked.
SELECT scope, revoked_at, coalesce(expires_at <= now(), false)::boolean AS is_expired
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
-- Revokes a key of the account. No row means that the account has no such key, or that
-- it is already revoked. Other processes are notified on the channel api_keys when the
-- transaction commits.
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

-- name: APIKeyRevokeAll :many
-- Revokes all keys of an account, when the account is deleted. Their notifications are
-- equal, so PostgreSQL sends one. It locks them in the order of [APIKeyLockAdmins] and
-- [APIKeyRevokeOwn], so that they never deadlock.
WITH locked AS (
    SELECT live.id
    FROM api_keys AS live
    WHERE live.account_id = @account_id
      AND live.revoked_at IS NULL
    ORDER BY live.id
    FOR NO KEY UPDATE
), revoked AS (
    UPDATE api_keys
    SET revoked_at = now()
    FROM locked
    WHERE api_keys.account_id = @account_id
      AND api_keys.id = locked.id
    RETURNING api_keys.account_id
)
SELECT pg_notify('api_keys', 'account ' || account_id)::text AS notified
FROM revoked;

-- name: APIKeyMarkUsed :exec
-- Stores when keys of any accounts were last used. A use less than a minute after
-- the stored one is skipped, so that all processes together write each key at most
-- once a minute. A time in the future would hide later uses, so none is stored. Rows are
-- locked in the order of the key, so that two processes never deadlock. Keys that have been
-- deleted meanwhile are skipped.
INSERT INTO api_key_uses (account_id, api_key_id, last_used_at)
SELECT api_keys.account_id, api_keys.id, least(used.used_at, statement_timestamp())
FROM (SELECT unnest(@ids::bigint[]) AS id, unnest(@used_at::timestamptz[]) AS used_at) AS used
JOIN api_keys ON api_keys.id = used.id
ORDER BY api_keys.account_id, api_keys.id
ON CONFLICT ON CONSTRAINT api_key_uses_pkey DO UPDATE
SET last_used_at = excluded.last_used_at
WHERE excluded.last_used_at - api_key_uses.last_used_at >= interval '1 minute';

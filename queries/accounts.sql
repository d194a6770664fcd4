-- name: AccountEnsure :one
-- The account of that name, made if it is new. The update that changes nothing
-- makes RETURNING give the row that was there.
INSERT INTO accounts (name)
VALUES (@name)
ON CONFLICT ON CONSTRAINT accounts_name_key DO UPDATE SET name = excluded.name
RETURNING id, name, created_at;

-- name: AccountGetByName :one
SELECT id, name, created_at
FROM accounts
WHERE name = @name;

-- name: AccountGet :one
-- The account of a key, and the key.
SELECT accounts.id, accounts.name, accounts.created_at,
       api_keys.id         AS key_id,
       api_keys.name       AS key_name,
       api_keys.scope      AS key_scope,
       api_keys.prefix     AS key_prefix,
       api_keys.created_at AS key_created_at,
       api_keys.expires_at, api_keys.last_used_at, api_keys.revoked_at
FROM accounts
JOIN api_keys ON api_keys.account_id = accounts.id
WHERE api_keys.id = @api_key_id;

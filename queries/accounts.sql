-- name: AccountEnsure :one
-- Returns the account with the name, and creates it if it does not exist. The
-- update changes nothing, but makes RETURNING return an existing row.
INSERT INTO accounts (name)
VALUES (@name)
ON CONFLICT ON CONSTRAINT accounts_name_key DO UPDATE SET name = excluded.name
RETURNING id, name, created_at;

-- name: AccountGetByName :one
SELECT id, name, created_at
FROM accounts
WHERE name = @name;

-- name: AccountGet :one
-- Returns a key and its account.
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

-- name: AccountEnsure :one
-- Returns the account with the name, and creates it if it does not exist. The
-- update changes nothing, but makes RETURNING return an existing row. Call
-- [AccountStateEnsure] in the same transaction.
INSERT INTO accounts (name)
VALUES (@name)
ON CONFLICT (name) WHERE parent_id IS NULL AND deleted_at IS NULL DO UPDATE SET name = excluded.name
RETURNING id, name, created_at;

-- name: AccountCreate :one
-- Fails with unique_violation if the name is taken. Call [AccountStateEnsure] in the
-- same transaction.
INSERT INTO accounts (name)
VALUES (@name)
RETURNING id, name, created_at;

-- name: AccountStateEnsure :exec
INSERT INTO account_state (account_id)
VALUES (@account_id)
ON CONFLICT ON CONSTRAINT account_state_pkey DO NOTHING;

-- name: AccountGetByName :one
-- Never finds a sandbox, because names of sandboxes are not unique.
SELECT id, name, created_at
FROM accounts
WHERE name = @name
  AND parent_id IS NULL
  AND deleted_at IS NULL;

-- name: AccountList :many
-- Lists the accounts without the sandboxes, for the operator.
SELECT id, name, created_at
FROM accounts
WHERE parent_id IS NULL
  AND deleted_at IS NULL
  AND id > @after_id
ORDER BY id
LIMIT @page_size;

-- name: AccountGet :one
-- Returns an account.
SELECT id, parent_id, name, coalesce(sample, '')::text AS sample, created_at, expires_at
FROM accounts
WHERE id = @id;

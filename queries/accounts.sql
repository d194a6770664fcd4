-- name: AccountEnsure :one
-- Returns the account with the name, and creates it if it does not exist. The
-- update changes nothing, but makes RETURNING return an existing row. Call
-- [AccountStateEnsure] in the same transaction.
INSERT INTO accounts (name)
VALUES (@name)
ON CONFLICT (name) WHERE kind = 'account' AND deleted_at IS NULL DO UPDATE SET name = excluded.name
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
-- Finds neither sandboxes, whose names are not unique, nor samples.
SELECT id, name, created_at
FROM accounts
WHERE name = @name
  AND kind = 'account'
  AND deleted_at IS NULL;

-- name: AccountList :many
-- Lists the accounts without sandboxes and samples, for the operator.
SELECT id, name, created_at
FROM accounts
WHERE kind = 'account'
  AND deleted_at IS NULL
  AND id > @after_id
ORDER BY id
LIMIT @page_size;

-- name: AccountGet :one
-- Returns an account.
SELECT id, parent_id, name, sample_id, created_at, expires_at
FROM accounts
WHERE id = @id;

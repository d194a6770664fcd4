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

-- name: CategoryGet :one
SELECT account_id, id, name, name_key, description
FROM categories
WHERE account_id = @account_id
  AND id = @id;

-- name: CategoryLock :one
-- Locks the category until the transaction ends, for If-Match.
SELECT account_id, id, name, name_key, description
FROM categories
WHERE account_id = @account_id
  AND id = @id
FOR UPDATE;

-- name: CategoryCreate :one
-- Fails with unique_violation if the name is taken.
INSERT INTO categories (account_id, name, name_key, description)
VALUES (@account_id, @name, @name_key, sqlc.narg(description))
RETURNING account_id, id, name, name_key, description;

-- name: CategoryUpdate :one
-- A NULL name leaves the name unchanged. The description is replaced, also by NULL,
-- if set_description is true.
UPDATE categories
SET name        = coalesce(sqlc.narg(name), name),
    name_key    = coalesce(sqlc.narg(name_key), name_key),
    description = CASE WHEN @set_description::boolean THEN sqlc.narg(description) ELSE description END
WHERE account_id = @account_id
  AND id = @id
RETURNING account_id, id, name, name_key, description;

-- name: CategoryDelete :execrows
-- Fails with foreign_key_violation if the category has pets.
DELETE FROM categories
WHERE account_id = @account_id
  AND id = @id;

-- name: CategoryList :many
-- queries/pets.sql explains the sort.
SELECT account_id, id, name, name_key, description
FROM categories
WHERE account_id = @account_id
  AND CASE /* sort */ 'id'
      WHEN 'name'  THEN (name_key, id) > (@after_key::text, @after_id::bigint) AND name_key < @until_key::text
      WHEN '-name' THEN (name_key, id) < (@after_key, @after_id) AND name_key >= @from_key::text
      WHEN '-id'   THEN id < @after_id
      ELSE id > @after_id
  END
ORDER BY
    CASE /* sort */ 'id' WHEN 'name'  THEN name_key END,
    CASE /* sort */ 'id' WHEN '-name' THEN name_key END DESC,
    CASE WHEN /* sort */ 'id' IN ('id', 'name') THEN id END,
    id DESC
LIMIT (SELECT @page_size::int);

-- name: CategoryCount :one
-- For Prefer: count=exact.
SELECT count(*)
FROM categories
WHERE account_id = @account_id
  AND name_key >= @from_key
  AND name_key < @until_key;

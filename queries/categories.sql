-- name: CategoryGet :one
SELECT id, name, name_key, description
FROM categories
WHERE id = @id;

-- name: CategoryLock :one
-- For If-Match: the category as it is until the transaction ends.
SELECT id, name, name_key, description
FROM categories
WHERE id = @id
FOR UPDATE;

-- name: CategoryCreate :one
-- A name that is taken fails with unique_violation.
INSERT INTO categories (name, name_key, description)
VALUES (@name, @name_key, sqlc.narg(description))
RETURNING id, name, name_key, description;

-- name: CategoryUpdate :one
-- NULL leaves the name; the description is replaced, by NULL too, when set_description says so.
UPDATE categories
SET name        = coalesce(sqlc.narg(name), name),
    name_key    = coalesce(sqlc.narg(name_key), name_key),
    description = CASE WHEN @set_description::boolean THEN sqlc.narg(description) ELSE description END
WHERE id = @id
RETURNING id, name, name_key, description;

-- name: CategoryDelete :execrows
-- A category that pets belong to fails with foreign_key_violation.
DELETE FROM categories
WHERE id = @id;

-- The lists. One query per order, because ORDER BY CASE walks no index.
-- A page begins after the last row of the page before it (keyset paging).

-- name: CategoryListByID :many
SELECT id, name, name_key, description
FROM categories
WHERE id > @after_id
ORDER BY id
LIMIT @page_size;

-- name: CategoryListByIDDesc :many
SELECT id, name, name_key, description
FROM categories
WHERE id < @before_id
ORDER BY id DESC
LIMIT @page_size;

-- name: CategoryListByName :many
SELECT id, name, name_key, description
FROM categories
WHERE (name_key, id) > (@after_key::text, @after_id::bigint)
  AND name_key < @until_key
ORDER BY name_key, id
LIMIT @page_size;

-- name: CategoryListByNameDesc :many
SELECT id, name, name_key, description
FROM categories
WHERE (name_key, id) < (@before_key::text, @before_id::bigint)
  AND name_key >= @from_key
ORDER BY name_key DESC, id DESC
LIMIT @page_size;

-- A prefix of the name and the order of ids are two dimensions, which no one
-- index holds. Categories are not many, so all that have the prefix are sorted.

-- name: CategoryListPrefixByID :many
WITH prefixed AS MATERIALIZED (
    SELECT categories.id
    FROM categories
    WHERE categories.name_key >= @from_key
      AND categories.name_key < @until_key
      AND categories.id > @after_id
)
SELECT id, name, name_key, description
FROM categories
WHERE id = ANY (ARRAY(
    SELECT prefixed.id
    FROM prefixed
    ORDER BY prefixed.id
    LIMIT @page_size
))
ORDER BY id;

-- name: CategoryListPrefixByIDDesc :many
WITH prefixed AS MATERIALIZED (
    SELECT categories.id
    FROM categories
    WHERE categories.name_key >= @from_key
      AND categories.name_key < @until_key
      AND categories.id < @before_id
)
SELECT id, name, name_key, description
FROM categories
WHERE id = ANY (ARRAY(
    SELECT prefixed.id
    FROM prefixed
    ORDER BY prefixed.id DESC
    LIMIT @page_size
))
ORDER BY id DESC;

-- name: CategoryCount :one
-- For Prefer: count=exact.
SELECT count(*)
FROM categories
WHERE name_key >= @from_key
  AND name_key < @until_key;

-- name: CategoryGet :one
SELECT account_id, id, name, name_key, description
FROM categories
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

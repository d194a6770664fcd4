-- name: PetGetMany :batchmany
-- Omits ids that do not exist. The ids limit the rows: they are the filter of a
-- list, or single reads of an account that share a statement, at most 100.
-- PostgreSQL would plan ANY (@ids) again for each short array.
SELECT account_id, id, category_id, name, name_key, status
FROM pets
WHERE account_id = @account_id
  AND id = ANY (ARRAY(SELECT unnest(@ids::bigint[])))
ORDER BY id;

-- The lists. A page starts after the last row of the previous page (keyset
-- pagination). internal/api/sort.go replaces /* sort */ 'id' with the sort. The
-- planner then reduces each CASE to the branch of that sort before it chooses an
-- index. TestListPlans checks the plans.
--
-- LIMIT (SELECT …) hides the size of the page from the planner. If it knew the size, it
-- would expect more of a plan for these values than of a generic one, and plan each run
-- again: 60 us of 120.
--
-- A filter by status reads one index range per status and merges them. An
-- index-only scan collects the ids, and only the rows of the page are read.
-- ARRAY(…) makes the planner fetch them by primary key.

-- name: PetList :batchmany
-- Only a page by name needs the keys of names, for its cursor.
SELECT id, category_id, name, status,
    (CASE WHEN /* sort */ 'id' IN ('name', '-name') THEN name_key ELSE '' END)::text AS name_key
FROM pets
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

-- name: PetListOfStatus :many
SELECT account_id, id, category_id, name, name_key, status
FROM pets
WHERE pets.account_id = @account_id
  AND pets.id = ANY (ARRAY(
    SELECT head.id
    FROM unnest(@statuses::text[]) AS wanted (status)
    CROSS JOIN LATERAL (
        SELECT pets.name_key, pets.id
        FROM pets
        WHERE pets.account_id = @account_id
          AND pets.status = wanted.status
          AND CASE /* sort */ 'id'
              WHEN 'name'  THEN (pets.name_key, pets.id) > (@after_key::text, @after_id::bigint) AND pets.name_key < @until_key::text
              WHEN '-name' THEN (pets.name_key, pets.id) < (@after_key, @after_id) AND pets.name_key >= @from_key::text
              WHEN '-id'   THEN pets.id < @after_id
              ELSE pets.id > @after_id
          END
        ORDER BY
            CASE /* sort */ 'id' WHEN 'name'  THEN pets.name_key END,
            CASE /* sort */ 'id' WHEN '-name' THEN pets.name_key END DESC,
            CASE WHEN /* sort */ 'id' IN ('id', 'name') THEN pets.id END,
            pets.id DESC
        LIMIT (SELECT @page_size::int)
    ) AS head
    ORDER BY
        CASE /* sort */ 'id' WHEN 'name'  THEN head.name_key END,
        CASE /* sort */ 'id' WHEN '-name' THEN head.name_key END DESC,
        CASE WHEN /* sort */ 'id' IN ('id', 'name') THEN head.id END,
        head.id DESC
    LIMIT (SELECT @page_size::int)
))
ORDER BY
    CASE /* sort */ 'id' WHEN 'name'  THEN name_key END,
    CASE /* sort */ 'id' WHEN '-name' THEN name_key END DESC,
    CASE WHEN /* sort */ 'id' IN ('id', 'name') THEN id END,
    id DESC;

-- name: PetListOfCategory :many
SELECT account_id, id, category_id, name, name_key, status
FROM pets
WHERE pets.account_id = @account_id
  AND pets.id = ANY (ARRAY(
    SELECT head.id
    FROM unnest(@statuses::text[]) AS wanted (status)
    CROSS JOIN LATERAL (
        SELECT pets.name_key, pets.id
        FROM pets
        WHERE pets.account_id = @account_id
          AND pets.category_id = @category_id
          AND pets.status = wanted.status
          AND CASE /* sort */ 'id'
              WHEN 'name'  THEN (pets.name_key, pets.id) > (@after_key::text, @after_id::bigint) AND pets.name_key < @until_key::text
              WHEN '-name' THEN (pets.name_key, pets.id) < (@after_key, @after_id) AND pets.name_key >= @from_key::text
              WHEN '-id'   THEN pets.id < @after_id
              ELSE pets.id > @after_id
          END
        ORDER BY
            CASE /* sort */ 'id' WHEN 'name'  THEN pets.name_key END,
            CASE /* sort */ 'id' WHEN '-name' THEN pets.name_key END DESC,
            CASE WHEN /* sort */ 'id' IN ('id', 'name') THEN pets.id END,
            pets.id DESC
        LIMIT (SELECT @page_size::int)
    ) AS head
    ORDER BY
        CASE /* sort */ 'id' WHEN 'name'  THEN head.name_key END,
        CASE /* sort */ 'id' WHEN '-name' THEN head.name_key END DESC,
        CASE WHEN /* sort */ 'id' IN ('id', 'name') THEN head.id END,
        head.id DESC
    LIMIT (SELECT @page_size::int)
))
ORDER BY
    CASE /* sort */ 'id' WHEN 'name'  THEN name_key END,
    CASE /* sort */ 'id' WHEN '-name' THEN name_key END DESC,
    CASE WHEN /* sort */ 'id' IN ('id', 'name') THEN id END,
    id DESC;

-- The counts, for Prefer: count=exact. Postgres plans them with the actual values
-- (see internal/api/sort.go), so an unused filter costs nothing.

-- name: PetCount :one
SELECT count(*)
FROM pets
WHERE account_id = @account_id
  AND (sqlc.narg(category_id)::bigint IS NULL OR category_id = sqlc.narg(category_id))
  AND (sqlc.narg(statuses)::text[] IS NULL OR status = ANY (sqlc.narg(statuses)))
  AND (sqlc.narg(from_key)::text IS NULL OR name_key >= sqlc.narg(from_key))
  AND (sqlc.narg(until_key)::text IS NULL OR name_key < sqlc.narg(until_key));

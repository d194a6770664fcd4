-- name: PetLock :one
-- Locks the pet until the transaction ends, for If-Match. Inventory is always
-- locked before pets.
WITH entry AS (
    SELECT inventory.pet_id
    FROM inventory
    WHERE inventory.account_id = @account_id
      AND inventory.pet_id = @id
    FOR UPDATE
)
SELECT pets.account_id, pets.id, pets.category_id, pets.name, pets.name_key, pets.status
FROM entry
JOIN pets ON pets.account_id = @account_id AND pets.id = entry.pet_id
FOR UPDATE OF pets;

-- name: PetGetMany :many
-- Omits ids that do not exist. The ids limit the rows: they are the filter of a
-- list, at most 100, or single reads that share a statement, at most as many as
-- requests in flight. PostgreSQL would plan ANY (@ids) again for each short array.
SELECT account_id, id, category_id, name, name_key, status
FROM pets
WHERE account_id = @account_id
  AND id = ANY (ARRAY(SELECT unnest(@ids::bigint[])))
ORDER BY id;

-- name: PetCreate :one
-- Creates the pet and its inventory entry. Fails with foreign_key_violation if the
-- category does not exist.
WITH pet AS (
    INSERT INTO pets (account_id, category_id, name, name_key, status)
    VALUES (@account_id, @category_id, @name, @name_key, @status)
    RETURNING id
), entry AS (
    INSERT INTO inventory (account_id, pet_id)
    SELECT @account_id, id FROM pet
)
SELECT id FROM pet;

-- name: PetUpdate :one
-- NULL leaves a column unchanged. The row tells what was found and whether the
-- update was made. No row means that there is no pet.
--
-- The lock comes first and returns the latest version of the row, so the transition
-- is checked against the current status. The only forbidden transition is from sold
-- to pending (API reference, Stock and states).
WITH pet AS (
    SELECT pets.id, pets.status
    FROM pets
    WHERE pets.account_id = @account_id
      AND pets.id = @id
    FOR NO KEY UPDATE
), verdict AS (
    SELECT pet.id,
           sqlc.narg(category_id)::bigint IS NULL
               OR EXISTS (SELECT FROM categories WHERE categories.account_id = @account_id AND categories.id = sqlc.narg(category_id)) AS category_known,
           NOT (pet.status = 'sold' AND coalesce(sqlc.narg(status)::text, '') = 'pending') AS transition_allowed
    FROM pet
), updated AS (
    UPDATE pets
    SET category_id = coalesce(sqlc.narg(category_id), pets.category_id),
        name        = coalesce(sqlc.narg(name), pets.name),
        name_key    = coalesce(sqlc.narg(name_key), pets.name_key),
        status      = coalesce(sqlc.narg(status), pets.status)
    FROM verdict
    WHERE pets.account_id = @account_id
      AND pets.id = verdict.id
      AND verdict.category_known
      AND verdict.transition_allowed
    RETURNING pets.id, pets.category_id, pets.name, pets.status
)
SELECT verdict.category_known::boolean                AS category_known,
       verdict.transition_allowed::boolean            AS transition_allowed,
       coalesce(updated.category_id, 0)::bigint       AS category_id,
       coalesce(updated.name, '')::text               AS name,
       coalesce(updated.status, '')::text             AS status
FROM verdict
LEFT JOIN updated ON true;

-- name: PetDelete :execrows
-- Deletes the inventory entry first, because orders lock its row and inventory is
-- always locked before pets. Fails with foreign_key_violation, and deletes nothing,
-- if the pet has orders.
WITH entry AS (
    DELETE FROM inventory
    WHERE inventory.account_id = @account_id
      AND inventory.pet_id = @id
    RETURNING inventory.pet_id
)
DELETE FROM pets
USING entry
WHERE pets.account_id = @account_id
  AND pets.id = entry.pet_id;

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

-- name: PetList :many
SELECT account_id, id, category_id, name, name_key, status
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

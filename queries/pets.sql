-- name: PetLock :one
-- For If-Match: the pet as it is until the transaction ends. Inventory is
-- locked before pets, as everywhere.
WITH entry AS (
    SELECT inventory.pet_id
    FROM inventory
    WHERE inventory.pet_id = @id
    FOR UPDATE
)
SELECT pets.id, pets.category_id, pets.name, pets.name_key, pets.status
FROM entry
JOIN pets ON pets.id = entry.pet_id
FOR UPDATE OF pets;

-- name: PetGetMany :many
-- Ids that do not exist are left out. The ids bound the rows: they are the filter
-- of a list, at most 100, or those of single pets whose reads share a statement,
-- of which there are at most as many as requests in flight.
SELECT id, category_id, name, name_key, status
FROM pets
WHERE id = ANY (@ids::bigint[])
ORDER BY id;

-- name: PetCreate :one
-- The inventory entry is created with the pet. An unknown category fails with
-- foreign_key_violation.
WITH pet AS (
    INSERT INTO pets (category_id, name, name_key, status)
    VALUES (@category_id, @name, @name_key, @status)
    RETURNING id
), entry AS (
    INSERT INTO inventory (pet_id)
    SELECT id FROM pet
)
SELECT id FROM pet;

-- name: PetUpdate :one
-- NULL leaves a column as it is. One row says what was found and whether the
-- update was made; no row says that there is no pet.
--
-- The lock comes first and gives the latest version of the row: from there on
-- the transition is judged on what is really there. The only transition that
-- section 4 forbids is from sold to pending.
WITH pet AS (
    SELECT pets.id, pets.status
    FROM pets
    WHERE pets.id = @id
    FOR NO KEY UPDATE
), verdict AS (
    SELECT pet.id,
           sqlc.narg(category_id)::bigint IS NULL
               OR EXISTS (SELECT FROM categories WHERE categories.id = sqlc.narg(category_id)) AS category_known,
           NOT (pet.status = 'sold' AND coalesce(sqlc.narg(status), '') = 'pending') AS transition_allowed
    FROM pet
), updated AS (
    UPDATE pets
    SET category_id = coalesce(sqlc.narg(category_id), pets.category_id),
        name        = coalesce(sqlc.narg(name), pets.name),
        name_key    = coalesce(sqlc.narg(name_key), pets.name_key),
        status      = coalesce(sqlc.narg(status), pets.status)
    FROM verdict
    WHERE pets.id = verdict.id
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
-- The inventory entry goes first: its row is the lock that orders take, and
-- everyone locks inventory before pets. A pet with orders fails with
-- foreign_key_violation, and nothing is deleted.
WITH entry AS (
    DELETE FROM inventory
    WHERE pet_id = @id
    RETURNING pet_id
)
DELETE FROM pets
USING entry
WHERE pets.id = entry.pet_id;

-- The lists. A page begins after the last row of the page before it (keyset
-- paging). internal/api/sort.go writes the sort in the place of /* sort */ 'id';
-- the planner then folds each CASE to the branch of that sort, before it chooses
-- an index. TestListPlans checks the plans.
--
-- A filter by status walks one stretch of an index per status and merges the
-- heads: ids are gathered from the index alone, then only the rows of the page
-- are read. ARRAY(…) makes the planner fetch them by primary key.

-- name: PetList :many
SELECT id, category_id, name, name_key, status
FROM pets
WHERE CASE /* sort */ 'id'
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
LIMIT @page_size;

-- name: PetListOfStatus :many
SELECT id, category_id, name, name_key, status
FROM pets
WHERE id = ANY (ARRAY(
    SELECT head.id
    FROM unnest(@statuses::text[]) AS wanted (status)
    CROSS JOIN LATERAL (
        SELECT pets.name_key, pets.id
        FROM pets
        WHERE pets.status = wanted.status
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
        LIMIT @page_size
    ) AS head
    ORDER BY
        CASE /* sort */ 'id' WHEN 'name'  THEN head.name_key END,
        CASE /* sort */ 'id' WHEN '-name' THEN head.name_key END DESC,
        CASE WHEN /* sort */ 'id' IN ('id', 'name') THEN head.id END,
        head.id DESC
    LIMIT @page_size
))
ORDER BY
    CASE /* sort */ 'id' WHEN 'name'  THEN name_key END,
    CASE /* sort */ 'id' WHEN '-name' THEN name_key END DESC,
    CASE WHEN /* sort */ 'id' IN ('id', 'name') THEN id END,
    id DESC;

-- name: PetListOfCategory :many
SELECT id, category_id, name, name_key, status
FROM pets
WHERE id = ANY (ARRAY(
    SELECT head.id
    FROM unnest(@statuses::text[]) AS wanted (status)
    CROSS JOIN LATERAL (
        SELECT pets.name_key, pets.id
        FROM pets
        WHERE pets.category_id = @category_id
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
        LIMIT @page_size
    ) AS head
    ORDER BY
        CASE /* sort */ 'id' WHEN 'name'  THEN head.name_key END,
        CASE /* sort */ 'id' WHEN '-name' THEN head.name_key END DESC,
        CASE WHEN /* sort */ 'id' IN ('id', 'name') THEN head.id END,
        head.id DESC
    LIMIT @page_size
))
ORDER BY
    CASE /* sort */ 'id' WHEN 'name'  THEN name_key END,
    CASE /* sort */ 'id' WHEN '-name' THEN name_key END DESC,
    CASE WHEN /* sort */ 'id' IN ('id', 'name') THEN id END,
    id DESC;

-- The counts, for Prefer: count=exact. Postgres plans them with their values (see
-- internal/api/sort.go), so a filter that is not given costs nothing.

-- name: PetCount :one
SELECT count(*)
FROM pets
WHERE (sqlc.narg(category_id)::bigint IS NULL OR category_id = sqlc.narg(category_id))
  AND (sqlc.narg(statuses)::text[] IS NULL OR status = ANY (sqlc.narg(statuses)))
  AND (sqlc.narg(from_key)::text IS NULL OR name_key >= sqlc.narg(from_key))
  AND (sqlc.narg(until_key)::text IS NULL OR name_key < sqlc.narg(until_key));

-- name: PetGet :one
SELECT id, category_id, name, name_key, status
FROM pets
WHERE id = @id;

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
-- The rows of at most 100 ids; ids that do not exist are left out.
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

-- The lists. One query per order and kind of filter, because ORDER BY CASE and
-- ($1 IS NULL OR …) walk no index. A page begins after the last row of the page
-- before it (keyset paging); every name order takes the bounds of a prefix.
--
-- Filters that take several values walk one stretch of an index per value and
-- merge the heads: ids are gathered from the indexes alone, then only the rows
-- of the page are read. ARRAY(…) makes the planner fetch them by primary key.

-- name: PetListByID :many
SELECT id, category_id, name, name_key, status
FROM pets
WHERE id > @after_id
ORDER BY id
LIMIT @page_size;

-- name: PetListByIDDesc :many
SELECT id, category_id, name, name_key, status
FROM pets
WHERE id < @before_id
ORDER BY id DESC
LIMIT @page_size;

-- name: PetListByName :many
SELECT id, category_id, name, name_key, status
FROM pets
WHERE (name_key, id) > (@after_key::text, @after_id::bigint)
  AND name_key < @until_key
ORDER BY name_key, id
LIMIT @page_size;

-- name: PetListByNameDesc :many
SELECT id, category_id, name, name_key, status
FROM pets
WHERE (name_key, id) < (@before_key::text, @before_id::bigint)
  AND name_key >= @from_key
ORDER BY name_key DESC, id DESC
LIMIT @page_size;

-- name: PetListOfStatusByID :many
SELECT id, category_id, name, name_key, status
FROM pets
WHERE id = ANY (ARRAY(
    SELECT head.id
    FROM unnest(@statuses::text[]) AS wanted (status)
    CROSS JOIN LATERAL (
        SELECT pets.id
        FROM pets
        WHERE pets.status = wanted.status
          AND pets.id > @after_id::bigint
        ORDER BY pets.id
        LIMIT @page_size
    ) AS head
    ORDER BY head.id
    LIMIT @page_size
))
ORDER BY id;

-- name: PetListOfStatusByIDDesc :many
SELECT id, category_id, name, name_key, status
FROM pets
WHERE id = ANY (ARRAY(
    SELECT head.id
    FROM unnest(@statuses::text[]) AS wanted (status)
    CROSS JOIN LATERAL (
        SELECT pets.id
        FROM pets
        WHERE pets.status = wanted.status
          AND pets.id < @before_id::bigint
        ORDER BY pets.id DESC
        LIMIT @page_size
    ) AS head
    ORDER BY head.id DESC
    LIMIT @page_size
))
ORDER BY id DESC;

-- name: PetListOfStatusByName :many
SELECT id, category_id, name, name_key, status
FROM pets
WHERE id = ANY (ARRAY(
    SELECT head.id
    FROM unnest(@statuses::text[]) AS wanted (status)
    CROSS JOIN LATERAL (
        SELECT pets.name_key, pets.id
        FROM pets
        WHERE pets.status = wanted.status
          AND (pets.name_key, pets.id) > (@after_key::text, @after_id::bigint)
          AND pets.name_key < @until_key::text
        ORDER BY pets.name_key, pets.id
        LIMIT @page_size
    ) AS head
    ORDER BY head.name_key, head.id
    LIMIT @page_size
))
ORDER BY name_key, id;

-- name: PetListOfStatusByNameDesc :many
SELECT id, category_id, name, name_key, status
FROM pets
WHERE id = ANY (ARRAY(
    SELECT head.id
    FROM unnest(@statuses::text[]) AS wanted (status)
    CROSS JOIN LATERAL (
        SELECT pets.name_key, pets.id
        FROM pets
        WHERE pets.status = wanted.status
          AND (pets.name_key, pets.id) < (@before_key::text, @before_id::bigint)
          AND pets.name_key >= @from_key::text
        ORDER BY pets.name_key DESC, pets.id DESC
        LIMIT @page_size
    ) AS head
    ORDER BY head.name_key DESC, head.id DESC
    LIMIT @page_size
))
ORDER BY name_key DESC, id DESC;

-- name: PetListOfCategoryByID :many
SELECT id, category_id, name, name_key, status
FROM pets
WHERE id = ANY (ARRAY(
    SELECT head.id
    FROM unnest(@category_ids::bigint[]) AS category (id)
    CROSS JOIN unnest(@statuses::text[]) AS wanted (status)
    CROSS JOIN LATERAL (
        SELECT pets.id
        FROM pets
        WHERE pets.category_id = category.id
          AND pets.status = wanted.status
          AND pets.id > @after_id::bigint
        ORDER BY pets.id
        LIMIT @page_size
    ) AS head
    ORDER BY head.id
    LIMIT @page_size
))
ORDER BY id;

-- name: PetListOfCategoryByIDDesc :many
SELECT id, category_id, name, name_key, status
FROM pets
WHERE id = ANY (ARRAY(
    SELECT head.id
    FROM unnest(@category_ids::bigint[]) AS category (id)
    CROSS JOIN unnest(@statuses::text[]) AS wanted (status)
    CROSS JOIN LATERAL (
        SELECT pets.id
        FROM pets
        WHERE pets.category_id = category.id
          AND pets.status = wanted.status
          AND pets.id < @before_id::bigint
        ORDER BY pets.id DESC
        LIMIT @page_size
    ) AS head
    ORDER BY head.id DESC
    LIMIT @page_size
))
ORDER BY id DESC;

-- name: PetListOfCategoryByName :many
SELECT id, category_id, name, name_key, status
FROM pets
WHERE id = ANY (ARRAY(
    SELECT head.id
    FROM unnest(@category_ids::bigint[]) AS category (id)
    CROSS JOIN unnest(@statuses::text[]) AS wanted (status)
    CROSS JOIN LATERAL (
        SELECT pets.name_key, pets.id
        FROM pets
        WHERE pets.category_id = category.id
          AND pets.status = wanted.status
          AND (pets.name_key, pets.id) > (@after_key::text, @after_id::bigint)
          AND pets.name_key < @until_key::text
        ORDER BY pets.name_key, pets.id
        LIMIT @page_size
    ) AS head
    ORDER BY head.name_key, head.id
    LIMIT @page_size
))
ORDER BY name_key, id;

-- name: PetListOfCategoryByNameDesc :many
SELECT id, category_id, name, name_key, status
FROM pets
WHERE id = ANY (ARRAY(
    SELECT head.id
    FROM unnest(@category_ids::bigint[]) AS category (id)
    CROSS JOIN unnest(@statuses::text[]) AS wanted (status)
    CROSS JOIN LATERAL (
        SELECT pets.name_key, pets.id
        FROM pets
        WHERE pets.category_id = category.id
          AND pets.status = wanted.status
          AND (pets.name_key, pets.id) < (@before_key::text, @before_id::bigint)
          AND pets.name_key >= @from_key::text
        ORDER BY pets.name_key DESC, pets.id DESC
        LIMIT @page_size
    ) AS head
    ORDER BY head.name_key DESC, head.id DESC
    LIMIT @page_size
))
ORDER BY name_key DESC, id DESC;

-- A prefix of the name and the order of ids are two dimensions, which no one
-- index holds: these are planned with their values (postgres.PlanEach), so
-- that Postgres weighs how common the prefix is. An empty array filters nothing.

-- name: PetListPrefixByID :many
SELECT id, category_id, name, name_key, status
FROM pets
WHERE name_key >= @from_key
  AND name_key < @until_key
  AND id > @after_id
  AND (coalesce(cardinality(@statuses::text[]), 0) = 0 OR status = ANY (@statuses))
  AND (coalesce(cardinality(@category_ids::bigint[]), 0) = 0 OR category_id = ANY (@category_ids))
ORDER BY id
LIMIT @page_size;

-- name: PetListPrefixByIDDesc :many
SELECT id, category_id, name, name_key, status
FROM pets
WHERE name_key >= @from_key
  AND name_key < @until_key
  AND id < @before_id
  AND (coalesce(cardinality(@statuses::text[]), 0) = 0 OR status = ANY (@statuses))
  AND (coalesce(cardinality(@category_ids::bigint[]), 0) = 0 OR category_id = ANY (@category_ids))
ORDER BY id DESC
LIMIT @page_size;

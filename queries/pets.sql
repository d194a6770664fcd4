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

-- A prefix of the name and the order of ids are two dimensions. Where at most
-- 1000 names have the prefix, they are few enough to be sorted. Where more have
-- it, the ids are walked in blocks of 4096, each of which is a stretch of its own
-- of pets_block_name_idx, until the page is full: no row is read that does not
-- match, wherever the matches lie. Three things are there for the planner: few
-- is materialized and asks for the prefix alone, so that its limit bounds it;
-- OFFSET 0 keeps a stretch from being read twice; and a block has no limit of its
-- own, for which the planner might walk the ids instead.

-- name: PetListPrefixByID :many
WITH RECURSIVE few AS MATERIALIZED (
    SELECT pets.id, pets.status
    FROM pets
    WHERE pets.name_key >= @from_key AND pets.name_key < @until_key
    ORDER BY pets.name_key
    LIMIT 1001
), walk (after, ids, found) AS (
    SELECT @after_id::bigint, '{}'::bigint[], 0
    WHERE (SELECT count(*) FROM few) > 1000
    UNION ALL
    SELECT stretch.edge, stretch.ids, walk.found + cardinality(stretch.ids)
    FROM walk
    CROSS JOIN LATERAL (
        SELECT next.block << 12 | 4095 AS edge,
               ARRAY(
                   SELECT pets.id
                   FROM pets
                   WHERE pets.id >> 12 = next.block
                     AND pets.status = ANY (@statuses::text[])
                     AND pets.name_key >= @from_key
                     AND pets.name_key < @until_key
                     AND pets.id > walk.after
               ) AS ids
        FROM (
            SELECT pets.id >> 12 AS block
            FROM pets
            WHERE pets.id > walk.after
            ORDER BY pets.id
            LIMIT 1
        ) AS next
        OFFSET 0
    ) AS stretch
    WHERE walk.found < @page_size::integer
), matching (id) AS (
    SELECT few.id
    FROM few
    WHERE (SELECT count(*) FROM few) <= 1000
      AND few.id > @after_id
      AND few.status = ANY (@statuses)
    UNION ALL
    SELECT unnest(walk.ids)
    FROM walk
)
SELECT id, category_id, name, name_key, status
FROM pets
WHERE id = ANY (ARRAY(
    SELECT matching.id
    FROM matching
    ORDER BY matching.id
    LIMIT @page_size::integer
))
ORDER BY id;

-- name: PetListPrefixByIDDesc :many
WITH RECURSIVE few AS MATERIALIZED (
    SELECT pets.id, pets.status
    FROM pets
    WHERE pets.name_key >= @from_key AND pets.name_key < @until_key
    ORDER BY pets.name_key
    LIMIT 1001
), walk (before, ids, found) AS (
    SELECT @before_id::bigint, '{}'::bigint[], 0
    WHERE (SELECT count(*) FROM few) > 1000
    UNION ALL
    SELECT stretch.edge, stretch.ids, walk.found + cardinality(stretch.ids)
    FROM walk
    CROSS JOIN LATERAL (
        SELECT next.block << 12 AS edge,
               ARRAY(
                   SELECT pets.id
                   FROM pets
                   WHERE pets.id >> 12 = next.block
                     AND pets.status = ANY (@statuses::text[])
                     AND pets.name_key >= @from_key
                     AND pets.name_key < @until_key
                     AND pets.id < walk.before
               ) AS ids
        FROM (
            SELECT pets.id >> 12 AS block
            FROM pets
            WHERE pets.id < walk.before
            ORDER BY pets.id DESC
            LIMIT 1
        ) AS next
        OFFSET 0
    ) AS stretch
    WHERE walk.found < @page_size::integer
), matching (id) AS (
    SELECT few.id
    FROM few
    WHERE (SELECT count(*) FROM few) <= 1000
      AND few.id < @before_id
      AND few.status = ANY (@statuses)
    UNION ALL
    SELECT unnest(walk.ids)
    FROM walk
)
SELECT id, category_id, name, name_key, status
FROM pets
WHERE id = ANY (ARRAY(
    SELECT matching.id
    FROM matching
    ORDER BY matching.id DESC
    LIMIT @page_size::integer
))
ORDER BY id DESC;

-- name: PetListOfCategoryPrefixByID :many
-- All pets of these categories that have the prefix are gathered from the index
-- and sorted: no row is read that does not match. OFFSET 0 keeps the planner from
-- walking the ids instead.
SELECT id, category_id, name, name_key, status
FROM pets
WHERE id = ANY (ARRAY(
    SELECT stretch.id
    FROM unnest(@category_ids::bigint[]) AS category (id)
    CROSS JOIN unnest(@statuses::text[]) AS wanted (status)
    CROSS JOIN LATERAL (
        SELECT pets.id
        FROM pets
        WHERE pets.category_id = category.id
          AND pets.status = wanted.status
          AND pets.name_key >= @from_key
          AND pets.name_key < @until_key
          AND pets.id > @after_id::bigint
        OFFSET 0
    ) AS stretch
    ORDER BY stretch.id
    LIMIT @page_size
))
ORDER BY id;

-- name: PetListOfCategoryPrefixByIDDesc :many
SELECT id, category_id, name, name_key, status
FROM pets
WHERE id = ANY (ARRAY(
    SELECT stretch.id
    FROM unnest(@category_ids::bigint[]) AS category (id)
    CROSS JOIN unnest(@statuses::text[]) AS wanted (status)
    CROSS JOIN LATERAL (
        SELECT pets.id
        FROM pets
        WHERE pets.category_id = category.id
          AND pets.status = wanted.status
          AND pets.name_key >= @from_key
          AND pets.name_key < @until_key
          AND pets.id < @before_id::bigint
        OFFSET 0
    ) AS stretch
    ORDER BY stretch.id DESC
    LIMIT @page_size
))
ORDER BY id DESC;

-- The counts, for Prefer: count=exact. They walk the indexes of the lists.

-- name: PetCount :one
SELECT count(*)
FROM pets;

-- name: PetCountOfStatus :one
SELECT count(*)
FROM pets
WHERE status = ANY (@statuses::text[])
  AND name_key >= @from_key
  AND name_key < @until_key;

-- name: PetCountOfCategory :one
SELECT count(*)
FROM pets
WHERE category_id = ANY (@category_ids::bigint[])
  AND status = ANY (@statuses::text[])
  AND name_key >= @from_key
  AND name_key < @until_key;

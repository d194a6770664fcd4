-- name: InventoryGet :one
SELECT inventory.pet_id, inventory.quantity, pets.status
FROM inventory
JOIN pets ON pets.id = inventory.pet_id
WHERE inventory.pet_id = @pet_id;

-- name: InventoryLock :one
-- For If-Match: the entry, with its pet's status, as it is until the
-- transaction ends.
WITH entry AS (
    SELECT inventory.pet_id, inventory.quantity
    FROM inventory
    WHERE inventory.pet_id = @pet_id
    FOR UPDATE
)
SELECT entry.pet_id, entry.quantity, pets.status
FROM entry
JOIN pets ON pets.id = entry.pet_id
FOR UPDATE OF pets;

-- name: InventorySet :one
-- The status follows the stock as section 4 of the contract says, judged on
-- the locked rows (inventory first, then the pet). No row: there is no entry.
WITH entry AS (
    SELECT inventory.pet_id, inventory.held
    FROM inventory
    WHERE inventory.pet_id = @pet_id
    FOR NO KEY UPDATE
), pet AS (
    SELECT pets.id, pets.status, entry.held
    FROM entry
    JOIN pets ON pets.id = entry.pet_id
    FOR NO KEY UPDATE OF pets
), next AS (
    SELECT pet.id,
           pet.status AS status_before,
           CASE
               WHEN @quantity::bigint > 0 AND pet.status IN ('sold', 'pending') THEN 'available'
               WHEN @quantity = 0 AND pet.status = 'available' AND pet.held > 0 THEN 'pending'
               ELSE pet.status
           END AS status
    FROM pet
), stocked AS (
    UPDATE inventory
    SET quantity = @quantity
    FROM next
    WHERE inventory.pet_id = @pet_id
    RETURNING inventory.quantity
), moved AS (
    UPDATE pets
    SET status = next.status
    FROM next
    WHERE pets.id = @pet_id
      AND next.status <> next.status_before
)
SELECT next.status::text AS status
FROM next;

-- name: InventorySummary :many
SELECT status, count(*) AS pets
FROM pets
GROUP BY status
ORDER BY status
LIMIT 3;

-- name: InventoryList :many
-- The bound is said of both tables: a merge join would else walk the pets from
-- the first one on.
SELECT inventory.pet_id, inventory.quantity, pets.status
FROM inventory
JOIN pets ON pets.id = inventory.pet_id
WHERE inventory.pet_id > @after_id
  AND pets.id > @after_id
ORDER BY inventory.pet_id
LIMIT @page_size;

-- name: InventoryListOfStatus :many
-- One stretch of the index per status, the heads merged; see queries/pets.sql.
SELECT inventory.pet_id, inventory.quantity, pets.status
FROM inventory
JOIN pets ON pets.id = inventory.pet_id
WHERE inventory.pet_id = ANY (ARRAY(
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
ORDER BY inventory.pet_id;

-- name: InventoryListLow :many
-- A bound on the quantity and the order of ids are two dimensions: few entries
-- are sorted, many are walked in blocks; see queries/pets.sql. The status is the
-- pet's, so entries of other statuses are read in vain. The block is said of both
-- tables, else a block might be joined to all pets.
WITH RECURSIVE few AS MATERIALIZED (
    SELECT inventory.pet_id
    FROM inventory
    WHERE inventory.quantity <= @max_quantity
    ORDER BY inventory.quantity
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
                   SELECT inventory.pet_id
                   FROM inventory
                   JOIN pets ON pets.id = inventory.pet_id
                   WHERE inventory.pet_id >> 12 = next.block
                     AND pets.id >> 12 = next.block
                     AND inventory.quantity <= @max_quantity
                     AND pets.status = ANY (@statuses::text[])
                     AND inventory.pet_id > walk.after
               ) AS ids
        FROM (
            SELECT inventory.pet_id >> 12 AS block
            FROM inventory
            WHERE inventory.pet_id > walk.after
            ORDER BY inventory.pet_id
            LIMIT 1
        ) AS next
        OFFSET 0
    ) AS stretch
    WHERE walk.found < @page_size::integer
), matching (id) AS (
    SELECT few.pet_id
    FROM few
    JOIN pets ON pets.id = few.pet_id
    WHERE (SELECT count(*) FROM few) <= 1000
      AND few.pet_id > @after_id
      AND pets.status = ANY (@statuses)
    UNION ALL
    SELECT unnest(walk.ids)
    FROM walk
)
SELECT inventory.pet_id, inventory.quantity, pets.status
FROM inventory
JOIN pets ON pets.id = inventory.pet_id
WHERE inventory.pet_id = ANY (ARRAY(
    SELECT matching.id
    FROM matching
    ORDER BY matching.id
    LIMIT @page_size::integer
))
ORDER BY inventory.pet_id;

-- The counts, for Prefer: count=exact. They walk the indexes of the lists.

-- name: InventoryCount :one
SELECT count(*)
FROM inventory;

-- name: InventoryCountOfStatus :one
-- Each pet has one entry, so the entries need not be read.
SELECT count(*)
FROM pets
WHERE status = ANY (@statuses::text[]);

-- name: InventoryCountLow :one
SELECT count(*)
FROM inventory
WHERE quantity <= @max_quantity;

-- name: InventoryCountLowOfStatus :one
SELECT count(*)
FROM inventory
JOIN pets ON pets.id = inventory.pet_id
WHERE inventory.quantity <= @max_quantity
  AND pets.status = ANY (@statuses::text[]);

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
-- Walks the primary key and leaves out entries that do not match. The bound is
-- said of both tables: a merge join would else walk the pets from the first one on.
SELECT inventory.pet_id, inventory.quantity, pets.status
FROM inventory
JOIN pets ON pets.id = inventory.pet_id
WHERE inventory.low = ANY (@lows::boolean[])
  AND pets.status = ANY (@statuses::text[])
  AND inventory.pet_id > @after_id
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
-- Walks the index of low entries. The status is the pet's, so low entries of other
-- statuses are read in vain.
SELECT inventory.pet_id, inventory.quantity, pets.status
FROM inventory
JOIN pets ON pets.id = inventory.pet_id
WHERE inventory.low
  AND pets.status = ANY (@statuses::text[])
  AND inventory.pet_id > @after_id
  AND pets.id > @after_id
ORDER BY inventory.pet_id
LIMIT @page_size;

-- name: InventoryCount :one
-- For Prefer: count=exact; see queries/pets.sql. Where low is not asked for,
-- PetCount counts the same: each pet has one entry. Postgres leaves out a LEFT JOIN
-- whose columns nobody reads, as when there is no filter by status.
SELECT count(*)
FROM inventory
LEFT JOIN pets ON pets.id = inventory.pet_id
WHERE inventory.low = @low
  AND (sqlc.narg(statuses)::text[] IS NULL OR pets.status = ANY (sqlc.narg(statuses)));

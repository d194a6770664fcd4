-- name: InventoryGet :one
SELECT inventory.pet_id, inventory.quantity, pets.status
FROM inventory
JOIN pets ON pets.account_id = @account_id AND pets.id = inventory.pet_id
WHERE inventory.account_id = @account_id
  AND inventory.pet_id = @pet_id;

-- name: InventorySummary :many
SELECT status, count(*) AS pets
FROM pets
WHERE account_id = @account_id
GROUP BY status
ORDER BY status
LIMIT 3;

-- name: InventoryList :many
-- Scans the primary key and filters the entries. LIMIT 1 makes Postgres look up the pet
-- of each entry. In another join it would read all pets of the account.
SELECT inventory.pet_id, inventory.quantity, pet.status
FROM inventory
CROSS JOIN LATERAL (
    SELECT pets.status
    FROM pets
    WHERE pets.account_id = @account_id
      AND pets.id = inventory.pet_id
    LIMIT 1
) AS pet
WHERE inventory.account_id = @account_id
  AND inventory.low = ANY (@lows::boolean[])
  AND pet.status = ANY (@statuses::text[])
  AND inventory.pet_id > @after_id
ORDER BY inventory.pet_id
LIMIT (SELECT @page_size::int);

-- name: InventoryListOfStatus :many
-- Reads one index range per status and merges them, as in queries/pets.sql.
SELECT inventory.pet_id, inventory.quantity, pets.status
FROM inventory
JOIN pets ON pets.account_id = @account_id AND pets.id = inventory.pet_id
WHERE inventory.account_id = @account_id
  AND inventory.pet_id = ANY (ARRAY(
    SELECT head.id
    FROM unnest(@statuses::text[]) AS wanted (status)
    CROSS JOIN LATERAL (
        SELECT pets.id
        FROM pets
        WHERE pets.account_id = @account_id
          AND pets.status = wanted.status
          AND pets.id > @after_id::bigint
        ORDER BY pets.id
        LIMIT (SELECT @page_size::int)
    ) AS head
    ORDER BY head.id
    LIMIT (SELECT @page_size::int)
))
ORDER BY inventory.pet_id;

-- name: InventoryListLow :many
-- Scans the index of low entries. The status is in pets, so the scan also reads low
-- entries of other statuses. LIMIT 1 as in InventoryList.
SELECT inventory.pet_id, inventory.quantity, pet.status
FROM inventory
CROSS JOIN LATERAL (
    SELECT pets.status
    FROM pets
    WHERE pets.account_id = @account_id
      AND pets.id = inventory.pet_id
    LIMIT 1
) AS pet
WHERE inventory.account_id = @account_id
  AND inventory.low
  AND pet.status = ANY (@statuses::text[])
  AND inventory.pet_id > @after_id
ORDER BY inventory.pet_id
LIMIT (SELECT @page_size::int);

-- name: InventoryCount :one
-- For Prefer: count=exact; see queries/pets.sql. Without the filter low, the API
-- uses PetCount, because each pet has one entry. Postgres removes a LEFT JOIN whose
-- columns are unused, which is the case without a filter by status.
SELECT count(*)
FROM inventory
LEFT JOIN pets ON pets.account_id = @account_id AND pets.id = inventory.pet_id
WHERE inventory.account_id = @account_id
  AND inventory.low = @low
  AND (sqlc.narg(statuses)::text[] IS NULL OR pets.status = ANY (sqlc.narg(statuses)));

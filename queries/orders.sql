-- Orders move units between quantity and held of the inventory, and change the
-- status of the pet (API reference, Stock and states). Three rules make the
-- statements below correct at READ COMMITTED under any concurrency
-- (docs/decisions/0003-order-in-one-statement.md):
--
-- 1. Every statement locks the row of inventory first, then the order, then the
--    pet. So the changes of one pet run one after the other, without deadlocks.
-- 2. FOR NO KEY UPDATE in a CTE returns the latest version of a row, even if the row
--    changed while the statement waited. All conditions use the results of these
--    CTEs, never the WHERE of an UPDATE, which would first test the version of the
--    snapshot and skip the row. The units are computed from them for the same
--    reason: with the version of the snapshot, quantity - 5 could be negative and
--    violate the CHECK.
-- 3. Each later CTE reads from the earlier ones, so they run in this order.

-- name: OrderPlace :one
-- Always returns one row: whether the pet exists, its status, and the order if it
-- was placed.
WITH entry AS (
    SELECT inventory.pet_id, inventory.quantity, inventory.held
    FROM inventory
    WHERE inventory.account_id = @account_id
      AND inventory.pet_id = @pet_id
    FOR NO KEY UPDATE
), pet AS (
    SELECT pets.id,
           pets.status,
           entry.quantity - @quantity::bigint AS remaining,
           entry.held + @quantity             AS held
    FROM entry
    JOIN pets ON pets.account_id = @account_id AND pets.id = entry.pet_id
    FOR NO KEY UPDATE OF pets
), taken AS (
    UPDATE inventory
    SET quantity = pet.remaining,
        held     = pet.held
    FROM pet
    WHERE inventory.account_id = @account_id
      AND inventory.pet_id = @pet_id
      AND pet.status = 'available'
      AND pet.remaining >= 0
    RETURNING inventory.pet_id, inventory.quantity
), emptied AS (
    UPDATE pets
    SET status = 'pending'
    FROM taken
    WHERE pets.account_id = @account_id
      AND pets.id = @pet_id
      AND taken.quantity = 0
), placed AS (
    INSERT INTO orders (account_id, pet_id, quantity, ship_date)
    SELECT @account_id, taken.pet_id, @quantity, sqlc.narg(ship_date)
    FROM taken
    RETURNING id, ship_date
)
SELECT coalesce(placed.id, 0)::bigint     AS id,
       placed.ship_date,
       (pet.id IS NOT NULL)::boolean      AS pet_known,
       coalesce(pet.status, '')::text     AS pet_status
FROM (SELECT) AS one_row
LEFT JOIN pet ON true
LEFT JOIN placed ON true;

-- name: OrderPlaceMany :many
-- Places several orders of one pet, with the same result as one after the other:
-- orders that exceed the stock are skipped, and later ones may still be placed.
-- Returns one row per order, in the order of the arrays, or none if the pet does
-- not exist. An element of ship_dates equal to no_ship_date means NULL, because the
-- driver's arrays cannot contain NULL.
WITH RECURSIVE entry AS (
    SELECT inventory.pet_id, inventory.quantity, inventory.held
    FROM inventory
    WHERE inventory.account_id = @account_id
      AND inventory.pet_id = @pet_id
    FOR NO KEY UPDATE
), pet AS (
    SELECT pets.id, pets.status, entry.quantity, entry.held
    FROM entry
    JOIN pets ON pets.account_id = @account_id AND pets.id = entry.pet_id
    FOR NO KEY UPDATE OF pets
), wanted AS (
    SELECT place::bigint                                                        AS place,
           (@quantities::bigint[])[place]                                       AS quantity,
           nullif((@ship_dates::timestamptz[])[place], @no_ship_date::timestamptz) AS ship_date
    FROM generate_subscripts(@quantities::bigint[], 1) AS place
), decided AS (
    SELECT 0::bigint AS place, pet.status, pet.status AS status_before, pet.quantity AS stock, false AS fits
    FROM pet
    UNION ALL
    SELECT wanted.place,
           CASE WHEN fits.fits AND fits.stock = 0 THEN 'pending' ELSE decided.status END,
           decided.status,
           CASE WHEN fits.fits THEN fits.stock ELSE decided.stock END,
           fits.fits
    FROM decided
    JOIN wanted ON wanted.place = decided.place + 1
    CROSS JOIN LATERAL (
        SELECT decided.stock - wanted.quantity AS stock,
               decided.status = 'available' AND decided.stock >= wanted.quantity AS fits
    ) AS fits
), outcome AS (
    SELECT decided.status, decided.stock
    FROM decided
    ORDER BY decided.place DESC
    LIMIT 1
), taken AS (
    UPDATE inventory
    SET quantity = outcome.stock,
        held     = pet.held + pet.quantity - outcome.stock
    FROM pet, outcome
    WHERE inventory.account_id = @account_id
      AND inventory.pet_id = @pet_id
      AND outcome.stock <> pet.quantity
), emptied AS (
    UPDATE pets
    SET status = outcome.status
    FROM pet, outcome
    WHERE pets.account_id = @account_id
      AND pets.id = @pet_id
      AND outcome.status <> pet.status
), placed AS (
    INSERT INTO orders (account_id, pet_id, quantity, ship_date)
    SELECT @account_id, @pet_id, wanted.quantity, wanted.ship_date
    FROM decided
    JOIN wanted ON wanted.place = decided.place
    WHERE decided.fits
    ORDER BY wanted.place
    RETURNING id, ship_date
), numbered AS (
    -- Ids are assigned in the order of the insert.
    SELECT placed.id, placed.ship_date, row_number() OVER (ORDER BY placed.id) AS number
    FROM placed
), successes AS (
    SELECT decided.place, row_number() OVER (ORDER BY decided.place) AS number
    FROM decided
    WHERE decided.fits
)
SELECT coalesce(numbered.id, 0)::bigint   AS id,
       numbered.ship_date,
       decided.status_before::text        AS pet_status
FROM decided
LEFT JOIN successes ON successes.place = decided.place
LEFT JOIN numbered ON numbered.number = successes.number
WHERE decided.place > 0
ORDER BY decided.place;

-- name: OrderUpdate :one
-- Completes the order, sets its ship date, or both. No row means that there is no
-- order. The write includes the pet_id from OrderGet: an order never changes its
-- pet, and on a sharded cluster a write must include the sharding column.
WITH entry AS (
    SELECT inventory.pet_id, inventory.held
    FROM inventory
    WHERE inventory.account_id = @account_id
      AND inventory.pet_id = @pet_id
    FOR NO KEY UPDATE
), target AS (
    SELECT orders.id, orders.quantity, orders.complete, entry.held
    FROM entry
    JOIN orders ON orders.account_id = @account_id AND orders.pet_id = entry.pet_id AND orders.id = @id
    FOR NO KEY UPDATE OF orders
), verdict AS (
    SELECT target.quantity,
           target.held,
           NOT (target.complete AND coalesce(sqlc.narg(complete)::boolean, true) = false) AS allowed,
           NOT target.complete AND coalesce(sqlc.narg(complete)::boolean, false)          AS completes
    FROM target
), updated AS (
    UPDATE orders
    SET complete  = orders.complete OR coalesce(sqlc.narg(complete)::boolean, false),
        ship_date = CASE WHEN @set_ship_date::boolean THEN sqlc.narg(ship_date)::timestamptz ELSE orders.ship_date END
    FROM verdict
    WHERE orders.account_id = @account_id
      AND orders.pet_id = @pet_id
      AND orders.id = @id
      AND verdict.allowed
    RETURNING orders.ship_date, orders.complete
), released AS (
    UPDATE inventory
    SET held = verdict.held - verdict.quantity
    FROM verdict
    WHERE inventory.account_id = @account_id
      AND inventory.pet_id = @pet_id
      AND verdict.completes
    RETURNING inventory.quantity, inventory.held
), sold AS (
    UPDATE pets
    SET status = 'sold'
    FROM released
    WHERE pets.account_id = @account_id
      AND pets.id = @pet_id
      AND released.quantity = 0
      AND released.held = 0
)
SELECT verdict.allowed::boolean                  AS allowed,
       verdict.quantity,
       updated.ship_date,
       coalesce(updated.complete, true)::boolean AS complete
FROM verdict
LEFT JOIN updated ON true;

-- name: OrderCancel :one
-- Deletes an order that is not complete and returns its units to the stock. The row
-- tells whether it was complete. No row means that there is no order.
WITH entry AS (
    SELECT inventory.pet_id, inventory.quantity, inventory.held
    FROM inventory
    WHERE inventory.account_id = @account_id
      AND inventory.pet_id = @pet_id
    FOR NO KEY UPDATE
), target AS (
    SELECT orders.id, orders.complete, entry.quantity AS stock, entry.held
    FROM entry
    JOIN orders ON orders.account_id = @account_id AND orders.pet_id = entry.pet_id AND orders.id = @id
    FOR NO KEY UPDATE OF orders
), pet AS (
    SELECT pets.id, pets.status
    FROM target
    JOIN pets ON pets.account_id = @account_id AND pets.id = @pet_id
    FOR NO KEY UPDATE OF pets
), cancelled AS (
    DELETE FROM orders
    USING target
    WHERE orders.account_id = @account_id
      AND orders.pet_id = @pet_id
      AND orders.id = @id
      AND NOT target.complete
    RETURNING orders.quantity
), returned AS (
    UPDATE inventory
    SET quantity = target.stock + cancelled.quantity,
        held     = target.held - cancelled.quantity
    FROM target, cancelled
    WHERE inventory.account_id = @account_id
      AND inventory.pet_id = @pet_id
), restocked AS (
    UPDATE pets
    SET status = 'available'
    FROM target, pet, cancelled
    WHERE pets.account_id = @account_id
      AND pets.id = @pet_id
      AND pet.status = 'pending'
      AND target.stock = 0
)
SELECT target.complete
FROM target;

-- name: OrderLock :one
-- Locks the order until the transaction ends, for If-Match. Inventory is always
-- locked before orders.
WITH entry AS (
    SELECT inventory.pet_id
    FROM inventory
    WHERE inventory.account_id = @account_id
      AND inventory.pet_id = @pet_id
    FOR UPDATE
)
SELECT orders.account_id, orders.id, orders.pet_id, orders.quantity, orders.ship_date, orders.complete
FROM entry
JOIN orders ON orders.account_id = @account_id AND orders.pet_id = entry.pet_id AND orders.id = @id
FOR UPDATE OF orders;

-- name: OrderGet :one
SELECT account_id, id, pet_id, quantity, ship_date, complete
FROM orders
WHERE account_id = @account_id
  AND id = @id;

-- The lists. queries/pets.sql explains the sort.

-- name: OrderList :many
SELECT account_id, id, pet_id, quantity, ship_date, complete
FROM orders
WHERE account_id = @account_id
  AND CASE /* sort */ 'id' WHEN '-id' THEN id < @after_id::bigint ELSE id > @after_id END
ORDER BY CASE /* sort */ 'id' WHEN 'id' THEN id END, id DESC
LIMIT (SELECT @page_size::int);

-- name: OrderListComplete :many
SELECT account_id, id, pet_id, quantity, ship_date, complete
FROM orders
WHERE account_id = @account_id
  AND complete = @complete
  AND CASE /* sort */ 'id' WHEN '-id' THEN id < @after_id::bigint ELSE id > @after_id END
ORDER BY CASE /* sort */ 'id' WHEN 'id' THEN id END, id DESC
LIMIT (SELECT @page_size::int);

-- name: OrderListOfPet :many
-- Scans the orders of the pet in orders_pet_idx.
SELECT account_id, id, pet_id, quantity, ship_date, complete
FROM orders
WHERE account_id = @account_id
  AND pet_id = @pet_id
  AND complete = ANY (@completes::boolean[])
  AND CASE /* sort */ 'id' WHEN '-id' THEN id < @after_id::bigint ELSE id > @after_id END
ORDER BY CASE /* sort */ 'id' WHEN 'id' THEN id END, id DESC
LIMIT (SELECT @page_size::int);

-- name: OrderListShipping :many
-- Scans the ship dates of complete and of open orders, and merges the two. Postgres
-- plans it with the actual values, so it instead reads and sorts the orders of a
-- pet that has few.
SELECT account_id, id, pet_id, quantity, ship_date, complete
FROM orders
WHERE orders.account_id = @account_id
  AND orders.id = ANY (ARRAY(
    SELECT head.id
    FROM unnest(@completes::boolean[]) AS wanted (complete)
    CROSS JOIN LATERAL (
        SELECT orders.ship_date, orders.id
        FROM orders
        WHERE orders.account_id = @account_id
          AND orders.complete = wanted.complete
          AND (sqlc.narg(pet_id)::bigint IS NULL OR orders.pet_id = sqlc.narg(pet_id))
          AND CASE /* sort */ 'id'
              WHEN '-shipDate' THEN (orders.ship_date, orders.id) < (@after_date::timestamptz, @after_id::bigint) AND orders.ship_date >= @from_date::timestamptz
              ELSE (orders.ship_date, orders.id) > (@after_date, @after_id) AND orders.ship_date < @until_date::timestamptz
          END
        ORDER BY
            CASE /* sort */ 'id' WHEN 'shipDate' THEN orders.ship_date END,
            CASE /* sort */ 'id' WHEN '-shipDate' THEN orders.ship_date END DESC,
            CASE /* sort */ 'id' WHEN 'shipDate' THEN orders.id END,
            orders.id DESC
        LIMIT (SELECT @page_size::int)
    ) AS head
    ORDER BY
        CASE /* sort */ 'id' WHEN 'shipDate' THEN head.ship_date END,
        CASE /* sort */ 'id' WHEN '-shipDate' THEN head.ship_date END DESC,
        CASE /* sort */ 'id' WHEN 'shipDate' THEN head.id END,
        head.id DESC
    LIMIT (SELECT @page_size::int)
))
ORDER BY
    CASE /* sort */ 'id' WHEN 'shipDate' THEN ship_date END,
    CASE /* sort */ 'id' WHEN '-shipDate' THEN ship_date END DESC,
    CASE /* sort */ 'id' WHEN 'shipDate' THEN id END,
    id DESC;

-- name: OrderCount :one
-- For Prefer: count=exact; see queries/pets.sql.
SELECT count(*)
FROM orders
WHERE account_id = @account_id
  AND (sqlc.narg(pet_id)::bigint IS NULL OR pet_id = sqlc.narg(pet_id))
  AND (sqlc.narg(complete)::boolean IS NULL OR complete = sqlc.narg(complete))
  AND (sqlc.narg(ship_date_from)::timestamptz IS NULL OR ship_date >= sqlc.narg(ship_date_from))
  AND (sqlc.narg(ship_date_to)::timestamptz IS NULL OR ship_date < sqlc.narg(ship_date_to));

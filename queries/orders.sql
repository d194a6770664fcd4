-- Orders move units between the stock and what is held, and the pet's status
-- with them (section 4 of the contract). Three things make the statements below
-- right at READ COMMITTED, under any concurrency:
--
-- 1. The row of inventory is locked first, then the order, then the pet: all
--    that happens to one pet happens one after the other, and in one order.
-- 2. FOR NO KEY UPDATE in a CTE gives the latest version of a row, even when it
--    changed while the statement waited. Everything is decided on what those
--    CTEs return, never on a condition in the WHERE of an UPDATE: that would
--    be tested on the version of the snapshot first, and skip the row. The
--    units are computed from them for the same reason: on the version of the
--    snapshot, quantity - 5 could be negative and fail the CHECK.
-- 3. Each later CTE reads from the earlier ones, so that they run in this order.

-- name: OrderPlace :one
-- One row always: what was found, and the order if it was placed.
WITH entry AS (
    SELECT inventory.pet_id, inventory.quantity, inventory.held
    FROM inventory
    WHERE inventory.pet_id = @pet_id
    FOR NO KEY UPDATE
), pet AS (
    SELECT pets.id,
           pets.status,
           entry.quantity - @quantity::bigint AS remaining,
           entry.held + @quantity             AS held
    FROM entry
    JOIN pets ON pets.id = entry.pet_id
    FOR NO KEY UPDATE OF pets
), taken AS (
    UPDATE inventory
    SET quantity = pet.remaining,
        held     = pet.held
    FROM pet
    WHERE inventory.pet_id = @pet_id
      AND pet.status = 'available'
      AND pet.remaining >= 0
    RETURNING inventory.pet_id, inventory.quantity
), emptied AS (
    UPDATE pets
    SET status = 'pending'
    FROM taken
    WHERE pets.id = @pet_id
      AND taken.quantity = 0
), placed AS (
    INSERT INTO orders (pet_id, quantity, ship_date)
    SELECT taken.pet_id, @quantity, sqlc.narg(ship_date)
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
-- Places several orders of one pet, one after the other as if each were alone:
-- those that the stock does not suffice for are left out, and those behind them
-- are not. One row for each, in the order of the arrays; none when there is no
-- such pet. An element of ship_dates that is no_ship_date stands for NULL, which
-- arrays of this driver do not hold.
WITH RECURSIVE entry AS (
    SELECT inventory.pet_id, inventory.quantity, inventory.held
    FROM inventory
    WHERE inventory.pet_id = @pet_id
    FOR NO KEY UPDATE
), pet AS (
    SELECT pets.id, pets.status, entry.quantity, entry.held
    FROM entry
    JOIN pets ON pets.id = entry.pet_id
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
    WHERE inventory.pet_id = @pet_id
      AND outcome.stock <> pet.quantity
), emptied AS (
    UPDATE pets
    SET status = outcome.status
    FROM pet, outcome
    WHERE pets.id = @pet_id
      AND outcome.status <> pet.status
), placed AS (
    INSERT INTO orders (pet_id, quantity, ship_date)
    SELECT @pet_id, wanted.quantity, wanted.ship_date
    FROM decided
    JOIN wanted ON wanted.place = decided.place
    WHERE decided.fits
    ORDER BY wanted.place
    RETURNING id, ship_date
), numbered AS (
    -- Ids are given out in the order of the insert.
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
-- Completes the order, sets its ship date, or both. No row: there is no order.
-- The write names the pet, which OrderGet told: an order never changes its pet,
-- and on a sharded cluster a write must name the column that spreads the data.
WITH entry AS (
    SELECT inventory.pet_id, inventory.held
    FROM inventory
    WHERE inventory.pet_id = @pet_id
    FOR NO KEY UPDATE
), target AS (
    SELECT orders.id, orders.quantity, orders.complete, entry.held
    FROM entry
    JOIN orders ON orders.pet_id = entry.pet_id AND orders.id = @id
    FOR NO KEY UPDATE OF orders
), verdict AS (
    SELECT target.quantity,
           target.held,
           NOT (target.complete AND coalesce(sqlc.narg(complete), true) = false) AS allowed,
           NOT target.complete AND coalesce(sqlc.narg(complete), false)          AS completes
    FROM target
), updated AS (
    UPDATE orders
    SET complete  = orders.complete OR coalesce(sqlc.narg(complete), false),
        ship_date = CASE WHEN @set_ship_date::boolean THEN sqlc.narg(ship_date)::timestamptz ELSE orders.ship_date END
    FROM verdict
    WHERE orders.pet_id = @pet_id
      AND orders.id = @id
      AND verdict.allowed
    RETURNING orders.ship_date, orders.complete
), released AS (
    UPDATE inventory
    SET held = verdict.held - verdict.quantity
    FROM verdict
    WHERE inventory.pet_id = @pet_id
      AND verdict.completes
    RETURNING inventory.quantity, inventory.held
), sold AS (
    UPDATE pets
    SET status = 'sold'
    FROM released
    WHERE pets.id = @pet_id
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
-- Deletes an order that is not complete and returns its units. The row says
-- whether it was complete; no row: there is no order.
WITH entry AS (
    SELECT inventory.pet_id, inventory.quantity, inventory.held
    FROM inventory
    WHERE inventory.pet_id = @pet_id
    FOR NO KEY UPDATE
), target AS (
    SELECT orders.id, orders.complete, entry.quantity AS stock, entry.held
    FROM entry
    JOIN orders ON orders.pet_id = entry.pet_id AND orders.id = @id
    FOR NO KEY UPDATE OF orders
), pet AS (
    SELECT pets.id, pets.status
    FROM target
    JOIN pets ON pets.id = @pet_id
    FOR NO KEY UPDATE OF pets
), cancelled AS (
    DELETE FROM orders
    USING target
    WHERE orders.pet_id = @pet_id
      AND orders.id = @id
      AND NOT target.complete
    RETURNING orders.quantity
), returned AS (
    UPDATE inventory
    SET quantity = target.stock + cancelled.quantity,
        held     = target.held - cancelled.quantity
    FROM target, cancelled
    WHERE inventory.pet_id = @pet_id
), restocked AS (
    UPDATE pets
    SET status = 'available'
    FROM target, pet, cancelled
    WHERE pets.id = @pet_id
      AND pet.status = 'pending'
      AND target.stock = 0
)
SELECT target.complete
FROM target;

-- name: OrderLock :one
-- For If-Match: the order as it is until the transaction ends. Inventory is
-- locked before orders, as everywhere.
WITH entry AS (
    SELECT inventory.pet_id
    FROM inventory
    WHERE inventory.pet_id = @pet_id
    FOR UPDATE
)
SELECT orders.id, orders.pet_id, orders.quantity, orders.ship_date, orders.complete
FROM entry
JOIN orders ON orders.pet_id = entry.pet_id AND orders.id = @id
FOR UPDATE OF orders;

-- name: OrderGet :one
SELECT id, pet_id, quantity, ship_date, complete
FROM orders
WHERE id = @id;

-- The lists: one query per order and kind of filter; see queries/pets.sql.

-- name: OrderListByID :many
SELECT id, pet_id, quantity, ship_date, complete
FROM orders
WHERE id > @after_id
ORDER BY id
LIMIT @page_size;

-- name: OrderListByIDDesc :many
SELECT id, pet_id, quantity, ship_date, complete
FROM orders
WHERE id < @before_id
ORDER BY id DESC
LIMIT @page_size;

-- name: OrderListCompleteByID :many
SELECT id, pet_id, quantity, ship_date, complete
FROM orders
WHERE complete = @complete
  AND id > @after_id
ORDER BY id
LIMIT @page_size;

-- name: OrderListCompleteByIDDesc :many
SELECT id, pet_id, quantity, ship_date, complete
FROM orders
WHERE complete = @complete
  AND id < @before_id
ORDER BY id DESC
LIMIT @page_size;

-- name: OrderListOfPetByID :many
SELECT id, pet_id, quantity, ship_date, complete
FROM orders
WHERE pet_id = @pet_id
  AND id > @after_id
ORDER BY id
LIMIT @page_size;

-- name: OrderListOfPetByIDDesc :many
SELECT id, pet_id, quantity, ship_date, complete
FROM orders
WHERE pet_id = @pet_id
  AND id < @before_id
ORDER BY id DESC
LIMIT @page_size;

-- name: OrderListOfPetCompleteByID :many
SELECT id, pet_id, quantity, ship_date, complete
FROM orders
WHERE pet_id = @pet_id
  AND complete = @complete
  AND id > @after_id
ORDER BY id
LIMIT @page_size;

-- name: OrderListOfPetCompleteByIDDesc :many
SELECT id, pet_id, quantity, ship_date, complete
FROM orders
WHERE pet_id = @pet_id
  AND complete = @complete
  AND id < @before_id
ORDER BY id DESC
LIMIT @page_size;

-- A range of ship dates and the order of ids are two dimensions: few orders are
-- sorted, many are walked in blocks; see queries/pets.sql.

-- name: OrderListShippingByID :many
WITH RECURSIVE few AS MATERIALIZED (
    SELECT orders.id, orders.complete
    FROM orders
    WHERE orders.ship_date >= @ship_date_from AND orders.ship_date < @ship_date_to
    ORDER BY orders.ship_date
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
                   SELECT orders.id
                   FROM orders
                   WHERE orders.id >> 12 = next.block
                     AND orders.complete = ANY (@completes::boolean[])
                     AND orders.ship_date >= @ship_date_from
                     AND orders.ship_date < @ship_date_to
                     AND orders.id > walk.after
               ) AS ids
        FROM (
            SELECT orders.id >> 12 AS block
            FROM orders
            WHERE orders.id > walk.after
            ORDER BY orders.id
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
      AND few.complete = ANY (@completes)
    UNION ALL
    SELECT unnest(walk.ids)
    FROM walk
)
SELECT id, pet_id, quantity, ship_date, complete
FROM orders
WHERE id = ANY (ARRAY(
    SELECT matching.id
    FROM matching
    ORDER BY matching.id
    LIMIT @page_size::integer
))
ORDER BY id;

-- name: OrderListShippingByIDDesc :many
WITH RECURSIVE few AS MATERIALIZED (
    SELECT orders.id, orders.complete
    FROM orders
    WHERE orders.ship_date >= @ship_date_from AND orders.ship_date < @ship_date_to
    ORDER BY orders.ship_date
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
                   SELECT orders.id
                   FROM orders
                   WHERE orders.id >> 12 = next.block
                     AND orders.complete = ANY (@completes::boolean[])
                     AND orders.ship_date >= @ship_date_from
                     AND orders.ship_date < @ship_date_to
                     AND orders.id < walk.before
               ) AS ids
        FROM (
            SELECT orders.id >> 12 AS block
            FROM orders
            WHERE orders.id < walk.before
            ORDER BY orders.id DESC
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
      AND few.complete = ANY (@completes)
    UNION ALL
    SELECT unnest(walk.ids)
    FROM walk
)
SELECT id, pet_id, quantity, ship_date, complete
FROM orders
WHERE id = ANY (ARRAY(
    SELECT matching.id
    FROM matching
    ORDER BY matching.id DESC
    LIMIT @page_size::integer
))
ORDER BY id DESC;

-- name: OrderListOfPetShippingByID :many
-- Walks the orders of the pet, which are not many.
SELECT id, pet_id, quantity, ship_date, complete
FROM orders
WHERE pet_id = @pet_id
  AND id > @after_id
  AND ship_date >= @ship_date_from
  AND ship_date < @ship_date_to
  AND complete = ANY (@completes::boolean[])
ORDER BY id
LIMIT @page_size;

-- name: OrderListOfPetShippingByIDDesc :many
SELECT id, pet_id, quantity, ship_date, complete
FROM orders
WHERE pet_id = @pet_id
  AND id < @before_id
  AND ship_date >= @ship_date_from
  AND ship_date < @ship_date_to
  AND complete = ANY (@completes::boolean[])
ORDER BY id DESC
LIMIT @page_size;

-- The counts, for Prefer: count=exact. They walk the indexes of the lists.

-- name: OrderCount :one
SELECT count(*)
FROM orders
WHERE complete = ANY (@completes::boolean[]);

-- name: OrderCountShipping :one
SELECT count(*)
FROM orders
WHERE ship_date >= @ship_date_from
  AND ship_date < @ship_date_to
  AND complete = ANY (@completes::boolean[]);

-- name: OrderCountOfPet :one
SELECT count(*)
FROM orders
WHERE pet_id = @pet_id
  AND complete = ANY (@completes::boolean[]);

-- name: OrderCountOfPetShipping :one
SELECT count(*)
FROM orders
WHERE pet_id = @pet_id
  AND complete = ANY (@completes::boolean[])
  AND ship_date >= @ship_date_from
  AND ship_date < @ship_date_to;

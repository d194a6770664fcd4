-- queries/groupcommit.sql has the writes.

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

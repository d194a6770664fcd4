-- Sample data is copied with ids that internal/seed chooses.

-- name: SampleCategories :copyfrom
INSERT INTO categories (account_id, id, name, name_key, description)
VALUES ($1, $2, $3, $4, $5);

-- name: SamplePets :copyfrom
INSERT INTO pets (account_id, id, category_id, name, name_key, status)
VALUES ($1, $2, $3, $4, $5, $6);

-- name: SampleInventory :copyfrom
INSERT INTO inventory (account_id, pet_id, quantity, held)
VALUES ($1, $2, $3, $4);

-- name: SampleOrders :copyfrom
INSERT INTO orders (account_id, id, pet_id, quantity, ship_date, complete)
VALUES ($1, $2, $3, $4, $5, $6);

-- name: SampleStoreIsEmpty :one
-- Tells whether a store has neither categories nor pets.
SELECT (NOT EXISTS (SELECT FROM categories WHERE categories.account_id = @account_id)
    AND NOT EXISTS (SELECT FROM pets WHERE pets.account_id = @account_id))::boolean AS empty;

-- name: SampleReservePetIDs :one
-- Returns the first of a range of new ids. Other accounts may get some of them too,
-- which does not matter: ids are unique within an account.
SELECT min(drawn.id)::bigint
FROM (SELECT nextval(pg_get_serial_sequence('pets', 'id')) AS id FROM generate_series(1, @number::bigint)) AS drawn;

-- name: SampleReserveOrderIDs :one
-- Returns the first of a range of new ids, as SampleReservePetIDs does.
SELECT min(drawn.id)::bigint
FROM (SELECT nextval(pg_get_serial_sequence('orders', 'id')) AS id FROM generate_series(1, @number::bigint)) AS drawn;

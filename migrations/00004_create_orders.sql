-- +goose Up
CREATE TABLE orders (
    id        bigint  GENERATED ALWAYS AS IDENTITY (MAXVALUE 9007199254740991),
    pet_id    bigint  NOT NULL,
    quantity  bigint  NOT NULL,
    ship_date timestamptz,
    complete  boolean NOT NULL DEFAULT false,

    CONSTRAINT orders_pkey            PRIMARY KEY (pet_id, id),
    CONSTRAINT orders_pet_id_fkey     FOREIGN KEY (pet_id) REFERENCES pets (id),
    CONSTRAINT orders_quantity_check  CHECK (quantity BETWEEN 1 AND 1000000),
    CONSTRAINT orders_ship_date_check CHECK (ship_date >= '0001-01-01T00:00:00Z' AND ship_date < '10000-01-01T00:00:00Z')
);

CREATE INDEX orders_id_idx        ON orders (id);
CREATE INDEX orders_complete_idx  ON orders (complete, id);
CREATE INDEX orders_ship_date_idx ON orders (complete, ship_date, id) WHERE ship_date IS NOT NULL;

COMMENT ON TABLE  orders           IS 'Orders, each of one pet. Canceling an order deletes it and returns its units to the stock.';
COMMENT ON COLUMN orders.id        IS 'Assigned by the server, unique across all shards, at most 2^53-1.';
COMMENT ON COLUMN orders.pet_id    IS 'The pet; first in the primary key because it is the sharding column.';
COMMENT ON COLUMN orders.quantity  IS 'Units ordered. They are part of inventory.held until the order is complete.';
COMMENT ON COLUMN orders.ship_date IS 'The planned ship date, years 0001 to 9999 in UTC; NULL if not planned.';
COMMENT ON COLUMN orders.complete  IS 'True if the units have shipped. It never becomes false again.';

-- +goose Down
DROP TABLE orders;

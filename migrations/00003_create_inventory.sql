-- +goose Up
CREATE TABLE inventory (
    pet_id   bigint NOT NULL,
    quantity bigint NOT NULL DEFAULT 0,
    held     bigint NOT NULL DEFAULT 0,

    CONSTRAINT inventory_pkey           PRIMARY KEY (pet_id),
    CONSTRAINT inventory_pet_id_fkey    FOREIGN KEY (pet_id) REFERENCES pets (id),
    CONSTRAINT inventory_quantity_check CHECK (quantity >= 0),
    CONSTRAINT inventory_held_check     CHECK (held >= 0)
);

-- Low stock, the filter maxQuantity; within each block of 4096 ids, too (see queries/pets.sql).
CREATE INDEX inventory_quantity_idx       ON inventory (quantity, pet_id);
CREATE INDEX inventory_block_quantity_idx ON inventory ((pet_id >> 12), quantity, pet_id);

COMMENT ON TABLE  inventory          IS 'The stock of each pet. Its row is the lock under which orders of the pet are decided.';
COMMENT ON COLUMN inventory.pet_id   IS 'The pet, and the column that spreads the data.';
COMMENT ON COLUMN inventory.quantity IS 'Units that can be ordered.';
COMMENT ON COLUMN inventory.held     IS 'Units of orders that are not complete; not shown to clients.';

-- +goose Down
DROP TABLE inventory;

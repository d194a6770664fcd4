-- +goose Up
CREATE TABLE inventory (
    pet_id   bigint NOT NULL,
    quantity bigint NOT NULL DEFAULT 0,
    held     bigint NOT NULL DEFAULT 0,
    low      boolean NOT NULL GENERATED ALWAYS AS (quantity <= 10) STORED,

    CONSTRAINT inventory_pkey           PRIMARY KEY (pet_id),
    CONSTRAINT inventory_pet_id_fkey    FOREIGN KEY (pet_id) REFERENCES pets (id),
    CONSTRAINT inventory_quantity_check CHECK (quantity >= 0),
    CONSTRAINT inventory_held_check     CHECK (held >= 0)
) WITH (fillfactor = 80);

-- No index holds quantity or held, and every page has room for new versions of its
-- rows: an order then updates its entry without touching an index (a HOT update).
CREATE INDEX inventory_low_idx ON inventory (pet_id) WHERE low;

COMMENT ON TABLE  inventory          IS 'The stock of each pet. Its row is the lock under which orders of the pet are decided.';
COMMENT ON COLUMN inventory.pet_id   IS 'The pet, and the column that spreads the data.';
COMMENT ON COLUMN inventory.quantity IS 'Units that can be ordered.';
COMMENT ON COLUMN inventory.held     IS 'Units of orders that are not complete; not shown to clients.';
COMMENT ON COLUMN inventory.low      IS 'True if at most 10 units can be ordered: the filter low of GET /store/inventory.';

-- +goose Down
DROP TABLE inventory;

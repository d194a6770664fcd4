-- +goose Up
CREATE TABLE inventory (
    account_id bigint  NOT NULL,
    pet_id     bigint  NOT NULL,
    quantity   bigint  NOT NULL DEFAULT 0,
    held       bigint  NOT NULL DEFAULT 0,
    low        boolean NOT NULL GENERATED ALWAYS AS (quantity <= 10) STORED,

    CONSTRAINT inventory_pkey           PRIMARY KEY (account_id, pet_id),
    CONSTRAINT inventory_pet_id_fkey    FOREIGN KEY (account_id, pet_id) REFERENCES pets (account_id, id),
    CONSTRAINT inventory_quantity_check CHECK (quantity >= 0),
    CONSTRAINT inventory_held_check     CHECK (held >= 0)
) WITH (fillfactor = 80);

-- No index contains quantity or held, and every page has free space for new row
-- versions. So an order updates its entry without changing an index (a HOT update).
CREATE INDEX inventory_low_idx ON inventory (account_id, pet_id) WHERE low;

-- A prepared statement may get a plan for an average account, which can be far smaller than
-- the account of a request. The planner then estimates at least a hundredth of the table.
ALTER TABLE inventory ALTER COLUMN account_id SET (n_distinct = 100);

COMMENT ON TABLE  inventory            IS 'The stock of each pet. Every order locks the row of its pet.';
COMMENT ON COLUMN inventory.account_id IS 'The account that the row belongs to.';
COMMENT ON COLUMN inventory.pet_id     IS 'The pet.';
COMMENT ON COLUMN inventory.quantity   IS 'Units that can be ordered.';
COMMENT ON COLUMN inventory.held       IS 'Units of open orders; not part of the API.';
COMMENT ON COLUMN inventory.low        IS 'True if at most 10 units can be ordered: the filter low of GET /store/inventory.';

-- +goose Down
DROP TABLE inventory;

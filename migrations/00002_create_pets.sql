-- +goose Up
CREATE TABLE pets (
    id          bigint GENERATED ALWAYS AS IDENTITY (MAXVALUE 9007199254740991),
    category_id bigint NOT NULL,
    name        text   NOT NULL,
    name_key    text   COLLATE "C" NOT NULL,
    status      text   NOT NULL DEFAULT 'available',

    CONSTRAINT pets_pkey             PRIMARY KEY (id),
    CONSTRAINT pets_category_id_fkey FOREIGN KEY (category_id) REFERENCES categories (id),
    CONSTRAINT pets_name_check       CHECK (char_length(name) BETWEEN 1 AND 200),
    CONSTRAINT pets_name_key_check   CHECK (name_key <> ''),
    CONSTRAINT pets_status_check     CHECK (status IN ('available', 'pending', 'sold'))
);

-- Each list scans the index with its filter columns followed by its sort columns;
-- see queries/pets.sql.
CREATE INDEX pets_name_idx                 ON pets (name_key, id);
CREATE INDEX pets_status_idx               ON pets (status, id);
CREATE INDEX pets_status_name_idx          ON pets (status, name_key, id);
CREATE INDEX pets_category_status_idx      ON pets (category_id, status, id);
CREATE INDEX pets_category_status_name_idx ON pets (category_id, status, name_key, id);

COMMENT ON TABLE  pets             IS 'Pets of the shop. Each pet has one row in inventory. Sharded by id.';
COMMENT ON COLUMN pets.id          IS 'Assigned by the server, at most 2^53-1 so that JavaScript numbers are exact.';
COMMENT ON COLUMN pets.category_id IS 'A category with pets cannot be deleted.';
COMMENT ON COLUMN pets.name        IS 'As the client sent it.';
COMMENT ON COLUMN pets.name_key    IS 'The case-folded name (internal/casefold), for sorting and prefix search.';
COMMENT ON COLUMN pets.status      IS 'Changed by clients and by orders. Lock the row of inventory before this one.';

-- +goose Down
DROP TABLE pets;

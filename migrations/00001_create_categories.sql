-- +goose Up
CREATE TABLE categories (
    id          bigint GENERATED ALWAYS AS IDENTITY (MAXVALUE 9007199254740991),
    name        text   NOT NULL,
    name_key    text   COLLATE "C" NOT NULL,
    description text,

    CONSTRAINT categories_pkey              PRIMARY KEY (id),
    CONSTRAINT categories_name_key_key      UNIQUE (name_key),
    CONSTRAINT categories_name_check        CHECK (char_length(name) BETWEEN 1 AND 200),
    CONSTRAINT categories_name_key_check    CHECK (name_key <> ''),
    CONSTRAINT categories_description_check CHECK (char_length(description) <= 2000)
);

COMMENT ON TABLE  categories             IS 'Categories of pets. On a sharded cluster, a reference table: small and read often.';
COMMENT ON COLUMN categories.id          IS 'Assigned by the server, at most 2^53-1 so that JavaScript numbers are exact.';
COMMENT ON COLUMN categories.name        IS 'As the client sent it.';
COMMENT ON COLUMN categories.name_key    IS 'The case-folded name (internal/casefold), for uniqueness, sorting and prefix search.';
COMMENT ON COLUMN categories.description IS 'Optional free text.';

-- +goose Down
DROP TABLE categories;

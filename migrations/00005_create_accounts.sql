-- +goose Up
CREATE TABLE accounts (
    id         bigint GENERATED ALWAYS AS IDENTITY (MAXVALUE 9007199254740991),
    name       text   NOT NULL,
    created_at timestamptz NOT NULL DEFAULT now(),

    CONSTRAINT accounts_pkey       PRIMARY KEY (id),
    CONSTRAINT accounts_name_key   UNIQUE (name),
    CONSTRAINT accounts_name_check CHECK (char_length(name) BETWEEN 1 AND 100)
);

COMMENT ON TABLE  accounts      IS 'Accounts of API clients. Only messages and API keys belong to an account; all accounts share the pets, orders and inventory.';
COMMENT ON COLUMN accounts.name IS 'The unique name that petstore key create sets.';

-- +goose Down
DROP TABLE accounts;

-- +goose Up
-- Foreign keys need distributed tables on Citus, so the tables are in the migration before.
ALTER TABLE exchange_logs ADD CONSTRAINT exchange_logs_account_id_fkey FOREIGN KEY (account_id) REFERENCES account_state (account_id);

ALTER TABLE exchanges ADD CONSTRAINT exchanges_account_id_fkey FOREIGN KEY (account_id) REFERENCES exchange_logs (account_id);

-- +goose Down
ALTER TABLE exchanges DROP CONSTRAINT exchanges_account_id_fkey;

ALTER TABLE exchange_logs DROP CONSTRAINT exchange_logs_account_id_fkey;

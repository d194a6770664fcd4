-- +goose Up
-- A copy of a store compressed each long message again. That cost more CPU time than all the rest, and a full
-- sandbox of such messages could not be saved as a sample in time.
SET LOCAL lock_timeout = '2s';

-- +goose StatementBegin
DO $$
BEGIN
    ALTER TABLE messages ALTER COLUMN message SET STORAGE EXTERNAL;
EXCEPTION WHEN feature_not_supported THEN -- Citus does not change the shards of a distributed table
    PERFORM run_command_on_shards('messages', 'ALTER TABLE %s ALTER COLUMN message SET STORAGE EXTERNAL');
    SET LOCAL citus.enable_ddl_propagation = off;
    ALTER TABLE messages ALTER COLUMN message SET STORAGE EXTERNAL;
END
$$;
-- +goose StatementEnd

-- +goose Down
-- +goose StatementBegin
DO $$
BEGIN
    ALTER TABLE messages ALTER COLUMN message SET STORAGE EXTENDED;
EXCEPTION WHEN feature_not_supported THEN
    PERFORM run_command_on_shards('messages', 'ALTER TABLE %s ALTER COLUMN message SET STORAGE EXTENDED');
    SET LOCAL citus.enable_ddl_propagation = off;
    ALTER TABLE messages ALTER COLUMN message SET STORAGE EXTENDED;
END
$$;
-- +goose StatementEnd

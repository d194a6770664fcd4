-- +goose Up
-- A copy of a store compressed each long message again. That cost more CPU time than all the rest, and a full
-- sandbox of such messages could not be saved as a sample in time.
SET LOCAL lock_timeout = '2s';

-- +goose StatementBegin
DO $$
DECLARE
    failure text;
BEGIN
    ALTER TABLE messages ALTER COLUMN message SET STORAGE EXTERNAL;
EXCEPTION WHEN feature_not_supported THEN -- Citus does not change the shards of a distributed table
    SELECT result INTO failure
    FROM run_command_on_shards('messages', -- over new connections
        $c$DO $d$ BEGIN SET LOCAL lock_timeout = '2s'; ALTER TABLE %s ALTER COLUMN message SET STORAGE EXTERNAL; END $d$;$c$)
    WHERE NOT success;
    IF FOUND THEN
        RAISE EXCEPTION 'a shard of messages did not change: %', failure;
    END IF;
    SET LOCAL citus.enable_ddl_propagation = off;
    ALTER TABLE messages ALTER COLUMN message SET STORAGE EXTERNAL;
END
$$;
-- +goose StatementEnd

-- +goose Down
SET LOCAL lock_timeout = '2s';

-- +goose StatementBegin
DO $$
DECLARE
    failure text;
BEGIN
    ALTER TABLE messages ALTER COLUMN message SET STORAGE EXTENDED;
EXCEPTION WHEN feature_not_supported THEN -- Citus does not change the shards of a distributed table
    SELECT result INTO failure
    FROM run_command_on_shards('messages', -- over new connections
        $c$DO $d$ BEGIN SET LOCAL lock_timeout = '2s'; ALTER TABLE %s ALTER COLUMN message SET STORAGE EXTENDED; END $d$;$c$)
    WHERE NOT success;
    IF FOUND THEN
        RAISE EXCEPTION 'a shard of messages did not change: %', failure;
    END IF;
    SET LOCAL citus.enable_ddl_propagation = off;
    ALTER TABLE messages ALTER COLUMN message SET STORAGE EXTENDED;
END
$$;
-- +goose StatementEnd
